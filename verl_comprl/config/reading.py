"""Reads Hydra's untyped config group ``comprl`` as typed settings, and names every mistake in one line."""

from collections.abc import Iterator, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from verl_comprl.config.tree import ComprlConfig
from verl_comprl.display.first_line import first_line
from verl_comprl.settings import group_at, mistakes, unknown

GROUP = "comprl"
_PLACEHOLDERS = {"bank": {"path": "-"}, "queue": {"folder": "-"}}
"""For the settings without a default, where what the user gave cannot be used."""


class ConfigError(ValueError):
    """The configuration cannot work; the message has one line per mistake and says what to change."""


def comprl_config(config: DictConfig) -> ComprlConfig:
    """Return the settings of a run.

    Args:
        config: The composed config.

    Raises:
        ConfigError: If a name is unknown or a value is not allowed.
    """
    settings, found = read_settings(config)
    if found:
        raise ConfigError("\n".join(found))
    return settings


def read_settings(config: DictConfig) -> tuple[ComprlConfig, list[str]]:
    """Return the settings, with defaults for what is wrong so that other checks can continue, and the mistakes."""
    fallback = ComprlConfig.model_validate(_PLACEHOLDERS)
    try:
        values: Any = config.get(GROUP)
        values = OmegaConf.to_container(values, resolve=True) if OmegaConf.is_config(values) else values
    except OmegaConfBaseException as error:
        return fallback, [f"{error.full_key or GROUP}: {first_line(error)}"]
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        return fallback, [f"{GROUP}={values!r} is not allowed; it must be a group of settings"]
    try:
        return ComprlConfig.model_validate(values), []
    except ValidationError as error:
        found = mistakes(error, ComprlConfig, GROUP)
        for details in error.errors():
            _remove(values, details["loc"])
    for group, defaults in _PLACEHOLDERS.items():
        values[group] = defaults | (values.get(group) or {})
    try:
        return ComprlConfig.model_validate(values), found
    except ValidationError as error:  # a check across the fields of a group that shows only now
        return fallback, found + mistakes(error, ComprlConfig, GROUP)


def unknown_overrides(overrides: Sequence[str]) -> list[str]:
    """Return one line for each Hydra override of a setting of ours that does not exist; Hydra would answer with ten."""
    named = [(override, override.lstrip("+~").partition("=")[0]) for override in overrides]
    # Hydra takes the group's own name for a choice of files, of which there is one.
    whole = [override for override, name in named if name == GROUP and override != f"{GROUP}=default"]
    return [f"{override} is not allowed; {GROUP} is a group of settings, set one of them" for override in whole] + [
        line for _, name in named if name.startswith(f"{GROUP}.") and (line := _unknown_key(name))
    ]


def _unknown_key(name: str) -> str | None:
    parts = name.split(".")[1:]
    for depth, part in enumerate(parts):
        group = group_at(ComprlConfig, parts[:depth])
        if group is None:
            return f"{name} is unknown: {'.'.join([GROUP, *parts[:depth]])} is a value, not a group of settings"
        if part not in group.model_fields:
            return unknown(".".join([GROUP, *parts[: depth + 1]]), group)
    return None


def _remove(values: Any, path: Sequence[Any]) -> None:
    for name in path[:-1]:
        if not isinstance(values, dict):
            return
        values = values.get(name)
    if isinstance(values, dict) and path:
        values.pop(path[-1], None)


def leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield dotted names and values of the settings below ``name``; an empty mapping is a value."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(f"{name}.{key}", inner)
    else:
        yield name, value
