"""Reads rooms (floor plans) from the files of the installed alfworld distribution.

Owns access to these files: rules, grammar, goal library, which objects fit where, and floor plans. The package
``alfworld`` itself is never imported, because importing it creates a folder and sets an environment variable.
"""

import importlib.util
import json
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np

Location = tuple[int, int, int, int]
"""Column and row on a 25 cm grid, rotation in quarter turns, camera angle in degrees."""


@dataclass(frozen=True, slots=True)
class Receptacle:
    """A receptacle that cannot be moved.

    Attributes:
        id: Type and position, such as ``Drawer|+00.95|+00.22|-02.20``.
        type: Type, such as ``Drawer``.
        location: Where the agent stands to reach it; no two receptacles share one.
    """

    id: str
    type: str
    location: Location


@dataclass(frozen=True, slots=True)
class Scene:
    """One floor plan.

    Attributes:
        number: Its number in AI2-THOR.
        receptacles: The receptacles that cannot be moved.
        object_types: Types of the objects that can be carried, sorted.
        has_desk_lamp: Whether there is a lamp to examine objects under.
        free_locations: Where the agent can stand without reaching a receptacle.
    """

    number: int
    receptacles: tuple[Receptacle, ...]
    object_types: tuple[str, ...]
    has_desk_lamp: bool
    free_locations: tuple[Location, ...]


def distributed_file(*parts: str) -> Path:
    """Return the path of a file of the alfworld distribution.

    Raises:
        ImportError: If the distribution is not installed.
    """
    spec = importlib.util.find_spec("alfworld")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("alfworld is not installed")
    return Path(spec.submodule_search_locations[0], *parts)


@cache
def distributed_module(name: str) -> ModuleType:
    """Return the module ``alfworld.gen.<name>``, which must import nothing of alfworld."""
    spec = importlib.util.spec_from_file_location(f"_alfworld_{name}", distributed_file("gen", f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def may_hold(receptacle_type: str) -> set[str]:
    """Return the types of the objects that a type of receptacle may hold."""
    return distributed_module("constants").VAL_RECEPTACLE_OBJECTS.get(receptacle_type, set())


@cache
def load_scene(number: int) -> Scene:
    """Read a floor plan.

    The distribution has no positions for some types of receptacle, such as the coffee machine; those get a position
    that depends on the scene number alone.
    """
    constants = distributed_module("constants")

    def read(kind: str) -> Path:
        return distributed_file("gen", "layouts", f"FloorPlan{number}-{kind}")

    present: list[str] = json.loads(read("objects.json").read_text())
    positions: dict[str, list[float]] = json.loads(read("openable.json").read_text())
    cells = sorted((float(x), float(z)) for x, z in np.load(read("layout.npy")))
    random.Random(number).shuffle(cells)
    fixed = constants.RECEPTACLES - constants.MOVABLE_RECEPTACLES_SET
    for type_ in sorted(fixed.intersection(present) - {_type(id_) for id_ in positions}):
        x, z = cells.pop()
        part = f"|{type_}" if type_.endswith("Basin") else ""
        positions[object_id(type_.removesuffix("Basin"), x, 1.0, z) + part] = [x, z, 0, 30]
    receptacles: list[Receptacle] = []
    taken: set[Location] = set()
    for id_, (x, z, degrees, angle) in sorted(positions.items()):
        while (place := _location(x, z, degrees, angle)) in taken:
            angle += 1  # receptacles at one location are all reached from there, so ``go to`` is not admissible
        taken.add(place)
        receptacles.append(Receptacle(id_, _type(id_), place))
    portable = set().union(*(may_hold(receptacle.type) for receptacle in receptacles))
    return Scene(
        number=number,
        receptacles=tuple(receptacles),
        object_types=tuple(sorted(portable.intersection(present))),
        has_desk_lamp="DeskLamp" in present,
        free_locations=tuple(place for x, z in cells if (place := _location(x, z, 0, 0)) not in taken),
    )


def _type(id_: str) -> str:
    parts = id_.split("|")
    return parts[-1] if parts[-1].endswith("Basin") else parts[0]


def object_id(type_: str, x: float, y: float, z: float) -> str:
    """Return the id of an object of a type at a position in metres."""
    return "|".join([type_, *(f"{number:+06.2f}" for number in (x, y, z))])


def _location(x: float, z: float, degrees: float, angle: float) -> Location:
    return (round(4 * x), round(4 * z), round(degrees / 90), round(angle))
