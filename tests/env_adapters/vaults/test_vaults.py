"""Vaults: rules of a world, held-out names, game, scripted player, dataset rows."""

import itertools
import json
import random
from collections import Counter

import pytest

import env_adapters
from env_adapters.vaults.dataset import build_rows
from env_adapters.vaults.environment import VaultsEnvironment
from env_adapters.vaults.expert import ScriptedPolicy
from env_adapters.vaults.world import FAMILIES, KINDS, MOVES, NAMES, code_of, names_of

TRAIN, HELD_OUT = 12, 4


def win_rate(policies: list[ScriptedPolicy], environments: list[VaultsEnvironment]) -> float:
    won = 0
    for number, (policy, environment) in enumerate(zip(policies, environments, strict=True)):
        observation, info = environment.reset(seed=number)
        over = False
        while not over:
            observation, _, terminated, truncated, info = environment.step(
                f"<action>{policy.act(observation)}</action>"
            )
            over = terminated or truncated
        won += info["success"]
    return won / len(policies)


def test_a_code_belongs_to_family_and_kind_and_stays_in_its_world() -> None:
    environment = VaultsEnvironment(world=3, family="garden")
    codes: dict[str, set[tuple[str, ...]]] = {}
    for seed in range(400):
        environment.reset(seed=seed)
        codes.setdefault(environment.vault.kind, set()).add(environment.vault.code)
    assert set(codes) == set(KINDS) and all(len(seen) == 1 for seen in codes.values())
    worlds = [[code_of(world, family, kind, 3) for family in FAMILIES for kind in KINDS] for world in range(300)]
    drawn = Counter(itertools.chain.from_iterable(worlds))
    # 7,200 independent uniform draws of 216 codes: 33 of each on average, with a standard deviation of 6.
    assert len(drawn) == len(MOVES) ** 3 and max(drawn.values()) < 33 + 6 * 6 and min(drawn.values()) > 0
    assert len({tuple(codes) for codes in worlds}) == 300


@pytest.mark.parametrize(("world", "family", "kind"), [(0, "vault", "iron"), (7, "engine", "leather")])
def test_a_quarter_of_the_names_of_each_rule_is_held_out(world: int, family: str, kind: str) -> None:
    train, held_out = (set(names_of(world, family, kind, split)) for split in ("train", "val"))
    assert (len(train), len(held_out)) == (TRAIN, HELD_OUT)
    assert train | held_out == set(NAMES) and not train & held_out


def test_no_instance_of_evaluation_occurs_in_training() -> None:
    goals = {}
    for split, names in (("train", TRAIN), ("val", HELD_OUT)):
        rows = build_rows(split, len(KINDS) * names, world=5)
        goals[split] = [row["prompt"][1]["content"] for row in rows]
        # One row for each instance, and no more instances than that.
        assert len(set(goals[split])) == len(rows)
        assert set(goals[split]) == {row["prompt"][1]["content"] for row in build_rows(split, 999, seed=2, world=5)}
    assert not set(goals["train"]) & set(goals["val"])
    assert {tuple(goal.split()[2:4]) for goal in goals["train"]} == {tuple(goal.split()[2:4]) for goal in goals["val"]}


def test_an_answer_that_goes_on_after_its_action_is_invalid() -> None:
    environment = VaultsEnvironment(world=1)
    environment.reset(seed=4)
    (move, *_) = environment.vault.code
    for answer in (f"<action>up</action><action>{move}</action>", f"<action>{move}</action></action>"):
        assert not environment.step(answer)[4]["action_valid"]
    assert environment.step(f"<think>Why not <action>?</think><action>{move}</action>")[4]["action_effective"]


def test_an_episode_as_text() -> None:
    environment = VaultsEnvironment(world=1, max_turns=6)
    observation, info = environment.reset(seed=4)
    first, second, third = environment.vault.code
    wrong = next(move for move in MOVES if move != first)
    assert (observation, info["goal"]) == ("Lamps lit: 0.", f"Open the {' '.join(environment.vault.words)}.")
    assert environment.step(wrong)[:4] == (f"{wrong} does nothing. Lamps lit: 0.", 0.0, False, False)
    assert environment.step(f"<action>{first}</action>")[:2] == (f"{first} lights lamp 1. Lamps lit: 1.", 0.0)
    observation, reward, terminated, truncated, info = environment.step("<action>sing</action>")
    assert observation.startswith("Invalid action") and observation.endswith(f"\n{first} lights lamp 1. Lamps lit: 1.")
    assert (reward, info["action_valid"], info["action_effective"], info["score"]) == (0.0, False, False, 1 / 3)
    environment.step(f"<action>{second}</action>")
    observation, reward, terminated, truncated, info = environment.step(f"<action>{third}</action>")
    assert observation == f"{third} lights lamp 3. Lamps lit: 3. It opens."
    assert (reward, terminated, truncated, info["success"], info["score"]) == (1.0, True, False, True, 1.0)


def test_a_player_who_knows_the_code_always_wins_and_one_who_does_not_seldom() -> None:
    def started(number: int) -> VaultsEnvironment:
        environment = VaultsEnvironment(world=number % 50, family=FAMILIES[number % 3])
        environment.reset(seed=number)
        return environment

    environments = [started(number) for number in range(600)]
    informed = [ScriptedPolicy(environment.vault.code) for environment in environments]
    assert win_rate(informed, environments) == 1.0
    # Without knowledge a lamp takes 1 to 6 moves, each number equally often: three of them take at most 8 moves in
    # 56 of 216 cases.
    assert sum(sum(tries) <= 8 for tries in itertools.product(range(1, 7), repeat=3)) == 56
    ignorant = [ScriptedPolicy(seed=number) for number in range(600)]
    assert win_rate(ignorant, environments) == pytest.approx(56 / 216, abs=0.06)
    misled = [ScriptedPolicy(tuple(random.Random(n).choices(MOVES, k=3)), seed=n) for n in range(600)]
    assert win_rate(misled, environments) < 0.35


def test_the_player_reads_observations_only() -> None:
    with pytest.raises(ValueError, match="not an observation of a vault: 'hello'"):
        ScriptedPolicy().act("hello")


def test_rows_hold_what_the_environment_needs() -> None:
    (row,) = build_rows("val", 1, world=9, family="engine", kinds=2, length=2, max_turns=5)
    extra = row["extra_info"]
    environment = env_adapters.make(extra["environment"], **json.loads(extra["environment_options"]))
    observation, info = environment.reset(seed=extra["seed"])
    assert (info["task_id"], info["goal"]) == (extra["task_id"], row["prompt"][1]["content"])
    assert (row["data_source"], observation) == ("vaults/engine", "Lamps lit: 0.")
    assert row["prompt"][0]["content"] == environment.instructions
    assert "You have 5 turns." in environment.instructions and "when 2 moves" in environment.instructions


def test_a_vault_that_repeats_is_one_task() -> None:
    """Intervals of evaluations count different tasks: two episodes of one vault are not independent."""
    tasks = [row["extra_info"]["task_id"] for row in build_rows("val", 64, world=9, family="engine")]
    assert len(set(tasks)) == 32 and tasks[:32] == tasks[32:]  # 4 vaults of each of 8 kinds
    other_worlds = [row["extra_info"]["task_id"] for row in build_rows("val", 32, world=8, family="engine")]
    assert not {*tasks} & {*other_worlds}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"world": -1}, r"world must be an integer in \[0, 1099511627775\], got -1"),
        ({"kinds": 9}, r"kinds must be an integer in \[1, 8\], got 9"),
        ({"length": True}, r"length must be an integer in \[1, 6\], got True"),
        ({"family": "castle"}, "unknown family 'castle'; known: vault, garden, engine"),
        ({"max_turns": 0}, "max_turns must be a positive integer, got 0"),
    ],
)
def test_options_out_of_range_are_refused(option: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        env_adapters.make("vaults", **option)
    with pytest.raises(ValueError, match=message):
        build_rows("train", 1, **option)
