"""Draws random ALFWorld tasks and writes them as PDDL problems.

Owns which tasks a room allows, where its objects are placed, and the PDDL text. ``generator`` checks that the result
can be won.
"""

import random
from dataclasses import dataclass

from env_adapters.alfworld.scenes import Receptacle, Scene, distributed_module, may_hold, object_id

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)

# The receptacle that changes an object, and alfworld's name for the set of objects that it can change.
_TOOLS = {
    "pick_clean_then_place_in_recep": ("SinkBasin", "Cleanable"),
    "pick_heat_then_place_in_recep": ("Microwave", "Heatable"),
    "pick_cool_then_place_in_recep": ("Fridge", "Coolable"),
}
_LAMP = "DeskLamp"
_LAMP_STANDS_ON = ("Desk", "SideTable", "Dresser", "DiningTable", "CoffeeTable", "Shelf")
_MOST_INSTANCES = 3
_IN_PDDL = str.maketrans({"-": "_minus_", "|": "_bar_", "+": "_plus_", ".": "_dot_"})


@dataclass(frozen=True, slots=True)
class Task:
    """A household task.

    Attributes:
        type: One of ``TASK_TYPES``.
        object: Type of the object.
        receptacle: Type of the receptacle to put it into; empty if it is to be examined.
        lamp: Type of the lamp to examine it under; empty otherwise.
    """

    type: str
    object: str
    receptacle: str = ""
    lamp: str = ""


@dataclass(frozen=True, slots=True)
class Thing:
    """An object in the room: its id, its type and the receptacle that it is in."""

    id: str
    type: str
    receptacle: Receptacle


def possible_tasks(task_type: str, scene: Scene) -> list[Task]:
    """Return the tasks of a type that a room allows, in a fixed order."""
    types = {receptacle.type for receptacle in scene.receptacles}
    if task_type == "look_at_obj_in_light":
        possible = scene.has_desk_lamp and not types.isdisjoint(_LAMP_STANDS_ON)
        tasks = [Task(task_type, object_, lamp=_LAMP) for object_ in scene.object_types if possible]
    else:
        tool, objects = _tool(task_type), set(scene.object_types)
        if tool:
            objects &= (
                distributed_module("constants").VAL_ACTION_OBJECTS[_TOOLS[task_type][1]] if tool in types else set()
            )
        pairs = sorted((object_, type_) for type_ in types - {tool} for object_ in objects & may_hold(type_))
        tasks = [Task(task_type, object_, type_) for object_, type_ in pairs]
    return [task for task in tasks if _hiding_places(task.object, task, scene)]


def place_things(task: Task, scene: Scene, chosen: random.Random) -> list[Thing]:
    """Place up to three objects of each type in a room, but none where the task would be partly done already."""
    things: list[Thing] = []
    least = 2 if task.type == "pick_two_obj_and_place" else 1
    for type_ in scene.object_types:
        places = _hiding_places(type_, task, scene)
        for _ in range(chosen.randint(least if type_ == task.object else 1, _MOST_INSTANCES) if places else 0):
            things.append(_put(type_, chosen.choice(places), chosen))
    if scene.has_desk_lamp:
        stands = [place for kind in _LAMP_STANDS_ON for place in scene.receptacles if place.type == kind]
        things += [_put(_LAMP, place, chosen) for place in stands[:1]]
    return sorted({thing.id: thing for thing in things}.values(), key=lambda thing: thing.id)


def write_problem(name: str, task: Task, scene: Scene, things: list[Thing], chosen: random.Random) -> str:
    """Return the problem in PDDL; the agent starts at a random location where it reaches no receptacle."""
    constants = distributed_module("constants")
    start = chosen.choice(scene.free_locations)
    places = {place.location for place in scene.receptacles} | {start}
    object_types = sorted({thing.type for thing in things})
    receptacle_types = sorted({place.type for place in scene.receptacles})
    objects = [
        "agent1 - agent",
        *(f"{type_}Type - otype" for type_ in object_types),
        *(f"{type_}Type - rtype" for type_ in receptacle_types),
        *(f"{_name(thing.id)} - object" for thing in things),
        *(f"{_name(place.id)} - receptacle" for place in scene.receptacles),
        *(f"{_location(place)} - location" for place in sorted(places)),
    ]
    facts = [f"atLocation agent1 {_location(start)}"]
    for place in scene.receptacles:
        facts.append(f"receptacleType {_name(place.id)} {place.type}Type")
        facts.append(f"receptacleAtLocation {_name(place.id)} {_location(place.location)}")
        if place.type in constants.OPENABLE_CLASS_SET:
            facts.append(f"openable {_name(place.id)}")
    for type_ in receptacle_types:
        facts += [f"canContain {type_}Type {held}Type" for held in object_types if held in may_hold(type_)]
    for thing in things:
        id_ = _name(thing.id)
        facts.append(f"objectType {id_} {thing.type}Type")
        facts.append(f"inReceptacle {id_} {_name(thing.receptacle.id)}")
        facts.append(f"objectAtLocation {id_} {_location(thing.receptacle.location)}")
        if thing.type != _LAMP:
            facts.append(f"pickupable {id_}")
        if thing.type in constants.MOVABLE_RECEPTACLES_SET:
            facts.append(f"isReceptacleObject {id_}")
        facts += [
            f"{property_.lower()} {id_}"
            for property_, types in sorted(constants.VAL_ACTION_OBJECTS.items())
            if thing.type in types
        ]
    goal = distributed_module("goal_library").gdict[task.type]["pddl"]
    goal = goal.format(obj=task.object, recep=task.receptacle, toggle=task.lamp).replace("#", "-")
    return "\n".join(
        [
            f"(define (problem {name})",
            "(:domain alfred)",
            "(:objects",
            *objects,
            ")",
            "(:init",
            *(f"({fact})" for fact in facts),
            ")",
            goal.strip(),
        ]
    )


def _tool(task_type: str) -> str:
    return _TOOLS.get(task_type, ("", ""))[0]


def _hiding_places(object_type: str, task: Task, scene: Scene) -> list[Receptacle]:
    closed = {task.receptacle, _tool(task.type)} if object_type == task.object else set()
    return [place for place in scene.receptacles if place.type not in closed and object_type in may_hold(place.type)]


def _put(type_: str, place: Receptacle, chosen: random.Random) -> Thing:
    # The game numbers objects by their ids. The position in the id is random, so that the number does not reveal where
    # the object is.
    x, y, z = (chosen.uniform(-9, 9) for _ in range(3))
    return Thing(object_id(type_, x, y, z), type_, place)


def _name(id_: str) -> str:
    return id_.translate(_IN_PDDL)


def _location(place: tuple[int, int, int, int]) -> str:
    return _name("|".join(["loc", *map(str, place)]))
