"""Composes a run's config from a recipe and overrides, as Hydra does for the launcher."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from verl_comprl.config.groups import misplaced, verl_settings
from verl_comprl.config.reading import ConfigError
from verl_comprl.nearest import did_you_mean

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
        raise ConfigError(composing_mistake(error)) from error


def composing_mistake(error: BaseException) -> str:
    """Return one line on why a config cannot be composed, with the nearest name if a name does not exist.

    Args:
        error: What Hydra or OmegaConf raised.
    """
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    if isinstance(cause, ConfigKeyError | ConfigAttributeError) and isinstance(cause.parent_node, DictConfig):
        named: Any = OmegaConf.to_container(OmegaConf.from_dotlist([f"{cause.full_key}=0"]))
        if wrong := next(misplaced(named, verl_settings()), None):
            return wrong
        near = did_you_mean(str(cause.key), map(str, cause.parent_node))
        return f"{cause.full_key} is unknown; {near}a new key is set with +{cause.full_key}="
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return f"{group}={name} is unknown; {did_you_mean(name, error.options)}allowed: {', '.join(error.options)}"
    text = one_line(error)
    if isinstance(error, OverrideParseException):
        return f"{error.override} cannot be read: {text.partition(' See https')[0]}"
    return text.partition(" Config search path:")[0]


def unknown_options(arguments: Sequence[str]) -> list[str]:
    """Return one line for each option that Hydra does not know; it would answer with its usage and no nearest name.

    Args:
        arguments: Those of the launcher, options first.
    """
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()
    _, left = parser.parse_known_args(arguments)
    names = [argument.partition("=")[0] for argument in left if argument.startswith("-")]
    return [f"{name} is unknown; {did_you_mean(name, parser._option_string_actions)}see --help" for name in names]


def one_line(error: BaseException) -> str:
    """Return an error's message on one line; if it has none, that of its cause, or what it is."""
    message = " ".join(str(error).split())
    if not message and error.__cause__:
        return one_line(error.__cause__)
    return message or type(error).__name__
