"""Composes a run's config from a recipe and overrides, as Hydra does for the launcher."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from verl_comprl.config.reading import ConfigError

_SEARCH = "hydra.searchpath=[pkg://verl.trainer.config,pkg://verl_comprl.config]"
_OWN = "comprl_trainer"


def compose(config_dir: Path | None, config_name: str | None, overrides: Sequence[str]) -> Any:
    """Return the config.

    Args:
        config_dir: Folder of the recipe; None takes this package's configs.
        config_name: The recipe; None takes this package's.
        overrides: Hydra overrides.

    Raises:
        ConfigError: If the recipe cannot be read or overrides do not fit it.
    """
    import hydra
    from hydra.errors import HydraException

    folder = config_dir.resolve() if config_dir else Path(__file__).parent
    try:
        with hydra.initialize_config_dir(str(folder), version_base=None):
            return hydra.compose(config_name or _OWN, overrides=[_SEARCH, *overrides])
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        raise ConfigError(one_line(error)) from error


def one_line(error: BaseException) -> str:
    """Return an error's message on one line; if it has none, that of its cause, or what it is."""
    message = " ".join(str(error).split())
    if not message and error.__cause__:
        return one_line(error.__cause__)
    return message or type(error).__name__
