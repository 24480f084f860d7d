"""Settings of resuming and saving that verl reads late or not at all, refused before a run begins."""

from typing import Any

import pytest
from omegaconf import DictConfig

from verl_comprl.config.validation import ConfigError, validate


@pytest.mark.parametrize("mode", ["disabled", "off", "none", "Disable", False])
def test_an_unknown_way_to_resume_is_no_way_to_resume(config: DictConfig, mode: Any) -> None:
    config.trainer.resume_mode = mode
    with pytest.raises(ConfigError, match=rf"trainer.resume_mode={mode!r} is unknown; allowed: auto, disable, resume_"):
        validate(config)


def test_a_checkpoint_that_is_to_be_named_is_named(config: DictConfig) -> None:
    config.trainer.resume_mode = "resume_path"
    with pytest.raises(ConfigError, match="resume_path needs trainer"):
        validate(config)
    config.trainer.resume_from_path = "runs/one/global_step_4"
    validate(config)


@pytest.mark.parametrize("name", ["save_freq", "test_freq"])
@pytest.mark.parametrize("value", [None, "ten", 1.5])
def test_a_number_of_steps_is_a_number(config: DictConfig, name: str, value: Any) -> None:
    config.trainer[name] = value
    with pytest.raises(ConfigError, match=rf"trainer.{name}={value!r} is not allowed"):
        validate(config)
