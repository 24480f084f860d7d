"""Description of a run at its start."""

from typing import Any

import pytest
from omegaconf import OmegaConf

from verl_comprl.display.introduction import describe_training


def config(**changes: Any) -> Any:
    made = OmegaConf.create(
        {
            "data": {"train_batch_size": 4},
            "actor_rollout_ref": {"rollout": {"n": 8}},
            "trainer": {"total_training_steps": 30},
            "comprl": {"extractor": {"train": True, "distill": True}},
        }
    )
    for key, value in changes.items():
        OmegaConf.update(made, key.replace("__", "."), value)
    return made


@pytest.mark.parametrize(
    ("changes", "fraction", "expected", "absent"),
    [
        ({}, 0.25, "Training for 30 steps; in each step, the actor plays 4 tasks 8 times.", "None"),
        ({}, 0.25, "2 of 8 attempts are guided", "4 of 8"),
        ({"trainer__total_training_steps": None}, 0.25, "Training; in each step, the actor", "None"),
        ({}, None, "Training for 30 steps", "guided"),
    ],
)
def test_it_names_what_is_counted(changes: dict[str, Any], fraction: float | None, expected: str, absent: str) -> None:
    text = describe_training(config(**changes), fraction)
    assert expected in text and absent not in text


@pytest.mark.parametrize(
    ("train", "distill", "expected"),
    [
        (True, True, "writes the entries, and is updated"),
        (False, True, "it does not learn"),
        (False, False, "No episode"),
    ],
)
def test_it_says_what_the_extractor_does(train: bool, distill: bool, expected: str) -> None:
    changed = config(comprl__extractor__train=train, comprl__extractor__distill=distill)
    last = describe_training(changed, 0.5).splitlines()[-1]
    assert expected in last and ("updated" in last) == train


def test_a_resumed_run_says_where_it_continues() -> None:
    assert describe_training(config(), 0.5, after=15).startswith("Resuming after step 15 of 30; in each step")
