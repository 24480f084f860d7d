"""ALFWorld's scripted player, turn by turn on texts with a known best action."""

import re

import pytest

from env_adapters.alfworld.expert import ScriptedPolicy
from env_adapters.alfworld.problem import TASK_TYPES
from env_adapters.alfworld.prompt import build_instructions
from env_adapters.alfworld.scenes import distributed_module

ROOM = "You are in the middle of a room. Looking quickly around you, you see {}.\n\nYour task is to: {}."
NEW, OLD = build_instructions("move {o} to {r}", 40), build_instructions("put {o} in/on {r}", 40)


def follow(policy: ScriptedPolicy, script: list[tuple[str, str]]) -> None:
    for observation, action in script:
        assert policy.act(observation) == action


def test_the_search_starts_with_receptacles_that_exist_once() -> None:
    room = ROOM.format("a drawer 2, a drawer 1, a fridge 1, and a sofa 1", "put a pen in sofa")
    script = [
        (room, "go to fridge 1"),
        ("You arrive at fridge 1. The fridge 1 is closed.", "open fridge 1"),
        ("You open the fridge 1. The fridge 1 is open. In it, you see nothing.", "go to sofa 1"),
        ("You arrive at sofa 1. On the sofa 1, you see a box 1.", "go to drawer 1"),
        ("You arrive at drawer 1. The drawer 1 is closed.", "open drawer 1"),
        (
            "You open the drawer 1. The drawer 1 is open. In it, you see a cd 1, and a pen 2.",
            "take pen 2 from drawer 1",
        ),
        ("You pick up the pen 2 from the drawer 1.", "go to sofa 1"),
        ("You arrive at sofa 1. On the sofa 1, you see a box 1.", "move pen 2 to sofa 1"),
    ]
    follow(ScriptedPolicy(NEW), script)


def test_two_objects_are_put_in_one_place_in_the_older_dialect() -> None:
    room = ROOM.format("a bed 1, a shelf 2, and a shelf 1", "find two cd and put them in shelf")
    script = [
        (room, "go to bed 1"),
        ("On the bed 1, you see a cd 2, and a cd 1.", "take cd 2 from bed 1"),
        ("You pick up the cd 2 from the bed 1.", "go to shelf 1"),
        ("On the shelf 1, you see nothing.", "put cd 2 in/on shelf 1"),
        ("You put the cd 2 in/on the shelf 1.", "go to bed 1"),
        ("On the bed 1, you see a cd 1.", "take cd 1 from bed 1"),
        ("You pick up the cd 1 from the bed 1.", "go to shelf 1"),
        ("On the shelf 1, you see a cd 2.", "put cd 1 in/on shelf 1"),
    ]
    follow(ScriptedPolicy(OLD), script)


def test_a_receptacle_at_the_same_location_is_used_without_going_there() -> None:
    room = ROOM.format("a countertop 1, and a sinkbasin 1", "clean some fork and put it in countertop")
    script = [
        (room, "go to countertop 1"),
        ("You arrive at countertop 1. On the countertop 1, you see nothing.", "go to sinkbasin 1"),
        ("Invalid action, nothing happened. …\nOn the countertop 1, you see nothing.", "examine sinkbasin 1"),
        ("On the sinkbasin 1, you see a fork 1.", "take fork 1 from sinkbasin 1"),
        ("You pick up the fork 1 from the sinkbasin 1.", "clean fork 1 with sinkbasin 1"),
        ("You clean the fork 1 using the sinkbasin 1.", "go to countertop 1"),
    ]
    follow(ScriptedPolicy(NEW), script)


def test_it_passes_when_nothing_is_left_to_search() -> None:
    script = [
        (ROOM.format("a bed 1", "look at cd under the desklamp"), "go to bed 1"),
        ("You arrive at bed 1. On the bed 1, you see a cd 1.", "take cd 1 from bed 1"),
        ("You pick up the cd 1 from the bed 1.", "inventory"),
    ]
    follow(ScriptedPolicy(NEW), script)


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_every_sentence_of_the_goal_library_is_understood(task_type: str) -> None:
    for template in distributed_module("goal_library").gdict[task_type]["templates"]:
        task = template.format(obj="cup", recep="bed", toggle="desklamp")
        policy = ScriptedPolicy(NEW)
        policy.act(ROOM.format("a bed 1", task))
        words = {"object": "cup", **({"lamp": "desklamp"} if "light" in task_type else {"receptacle": "bed"})}
        change = re.search("clean|heat|hot|cool", task)
        assert policy._task == words | ({"change": change[0]} if change else {})


def test_unreadable_texts_are_refused() -> None:
    with pytest.raises(ValueError, match="no task of a known form in 'hello'"):
        ScriptedPolicy(NEW).act("hello")
    with pytest.raises(ValueError, match="no action for putting an object down"):
        ScriptedPolicy("hello")
