"""A group of settings stays a group and a value stays a value."""

from pathlib import Path
from typing import Any

import pytest
import verl
from omegaconf import DictConfig, OmegaConf

from verl_comprl.config.groups import misplaced, verl_settings
from verl_comprl.config.reading import ConfigError
from verl_comprl.config.validation import validate
from verl_comprl.record.settings_file import read_settings

SETTINGS = {"every": 5, "files": ["a"], "optim": {"lr": 0.1}, "limits": None, "mtp": "${model.mtp}"}


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"every": {"x": 1}}, "trainer.every is a value, not a group of settings"),
        ({"files": {"0": "b"}}, "trainer.files is a value, not a group of settings"),
        ({"optim": 0.1}, "trainer.optim=0.1 is not allowed; it must be a group of settings"),
        ({"optim": {"lr": {"x": 1}}}, "trainer.optim.lr is a value, not a group of settings"),
        ({"every": [1], "files": "b", "optim": {"lr": "${trainer.every}", "betas": {"x": 1}}, "new": {"x": 1}}, None),
        ({"every": None, "files": "${more}", "optim": "${more}", "limits": {"x": 1}, "mtp": {"x": 1}}, None),
        ({"optim": None, "limits": 3, "mtp": 3}, None),
    ],
)
def test_what_is_given_for_the_other_thing_is_named(given: dict[str, Any], line: str | None) -> None:
    assert list(misplaced({"trainer": given}, {"trainer": SETTINGS})) == ([line] if line else [])


def test_the_configs_of_all_engines_and_ours_fit_verls(composed: DictConfig) -> None:
    files = list((Path(verl.__file__).parent / "trainer/config").glob("_generated_ppo_*.yaml"))
    plain: Any = OmegaConf.to_container(composed)
    assert len(files) > 3 and verl_settings().keys() > {"trainer", "actor_rollout_ref", "extractor"}
    for settings in (plain, *map(read_settings, files)):
        assert list(misplaced(settings, verl_settings())) == []


def test_a_run_is_refused_with_a_line_for_each(config: DictConfig) -> None:
    for key, value in {"trainer.test_freq": {"x": 1}, "trainer.v1": 1, "extractor.actor": "dp_actor"}.items():
        OmegaConf.update(config, key, value, force_add=True)
    with pytest.raises(ConfigError) as caught:
        validate(config)
    assert sorted(str(caught.value).splitlines()) == [
        "extractor.actor='dp_actor' is not allowed; it must be a group of settings",
        "trainer.test_freq is a value, not a group of settings",
        "trainer.v1=1 is not allowed; it must be a group of settings",
    ]
