"""The arms: each changes what its name says, and nothing else."""

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

import verl_comprl.config

ARMS: dict[str, dict[str, Any]] = {
    "complementary": {},
    "baseline": {"comprl.experience": False, "algorithm.adv_estimator": "grpo"},
    "offline": {
        "comprl.extractor.train": False,
        "comprl.extractor.distill": False,
        "comprl.merge.every": 0,
    },
    "static_online": {"comprl.extractor.train": False},
    "experience_only": {"trainer.critic_warmup": 1_000_000_000},
    "all_guided": {"comprl.guided_fraction": 1.0},
    "shared_baseline": {"algorithm.adv_estimator": "grpo"},
    "self_distillation": {"comprl.self_distillation.weight": 2.0},
    "self_imitation": {
        "comprl.experience": False,
        "comprl.self_distillation.weight": 2.0,
        "comprl.self_distillation.source": "free",
    },
    "no_merge": {"comprl.merge.every": 0},
    "no_search_and_ask": {"comprl.search_and_ask.max_calls": 0},
}


def leaves(config: DictConfig) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def walk(node: Any, name: str) -> None:
        if isinstance(node, dict) and node:
            for key, value in node.items():
                walk(value, f"{name}.{key}" if name else key)
        else:
            found[name] = node

    walk(OmegaConf.to_container(config, resolve=False), "")
    return found


def test_every_arm_is_listed_here() -> None:
    files = (Path(verl_comprl.config.__path__[0]) / "arm").glob("*.yaml")
    assert {file.stem for file in files} == set(ARMS)


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_changes_what_its_name_says_and_nothing_else(composed: DictConfig, arm: str) -> None:
    search = "hydra.searchpath=[pkg://verl.trainer.config]"
    with initialize_config_module("verl_comprl.config", version_base=None):
        chosen = leaves(compose("comprl_trainer", overrides=[search, f"arm={arm}"]))
    default = leaves(composed)
    assert chosen.keys() == default.keys()
    changed = {key: value for key, value in chosen.items() if value != default[key]}
    assert changed.pop("comprl.arm", "complementary") == arm
    assert changed == ARMS[arm]
