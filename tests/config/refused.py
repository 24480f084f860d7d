"""What is wrong with a config that is refused."""

import pytest
from omegaconf import DictConfig

from verl_comprl.config.validation import ConfigError, validate


def mistakes(config: DictConfig) -> list[str]:
    """Return the lines with which a start refuses a config, which it must."""
    with pytest.raises(ConfigError) as caught:
        validate(config)
    return str(caught.value).splitlines()
