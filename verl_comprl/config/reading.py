"""From Hydra's untyped config group ``comprl`` to typed settings, with one line per mistake."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from verl_comprl.config.tree import ComprlConfig
from verl_comprl.settings import Settings, allowed

GROUP = "comprl"


class ConfigError(ValueError):
    """The configuration cannot work; the message has one line per mistake and says what to change."""


def comprl_config(config: DictConfig) -> ComprlConfig:
    """Return the settings of a run.

    Args:
        config: The composed config.

    Raises:
        ConfigError: If a name is unknown or a value is not allowed.
    """
    settings, mistakes = read_settings(config)
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return settings


def read_settings(config: DictConfig) -> tuple[ComprlConfig, list[str]]:
    """Return the settings, with defaults for what is wrong so that other checks can continue, and the mistakes."""
    try:
        values: Any = OmegaConf.to_container(config[GROUP], resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{GROUP}: {str(error).splitlines()[0]}") from error
    try:
        return ComprlConfig.model_validate(values), []
    except ValidationError as error:
        mistakes = list(_lines(error))
        for mistake in error.errors():
            _remove(values, mistake["loc"])
    values.setdefault("bank", {}).setdefault("path", "-")
    values.setdefault("queue", {}).setdefault("folder", "-")
    try:
        return ComprlConfig.model_validate(values), mistakes
    except ValidationError as error:  # a check across the fields of a group that now shows
        return ComprlConfig.model_validate({"bank": {"path": "-"}, "queue": {"folder": "-"}}), mistakes + list(
            _lines(error)
        )


def unknown_overrides(overrides: Sequence[str]) -> list[str]:
    """Return one line for each Hydra override of a setting of ours that does not exist; Hydra would answer with ten."""
    names = [override.lstrip("+").partition("=")[0] for override in overrides]
    return [line for name in names if name.startswith(f"{GROUP}.") and (line := _unknown_key(name))]


def _unknown_key(name: str) -> str | None:
    parts = name.split(".")[1:]
    for depth in range(len(parts)):
        group = _group(parts[:depth])
        if group is None or parts[depth] not in group.model_fields:
            return _unknown(".".join([GROUP, *parts[: depth + 1]]), group or ComprlConfig)
    return None


def _group(path: Sequence[Any]) -> type[Settings] | None:
    group: Any = ComprlConfig
    for name in path:
        field = group.model_fields.get(name)
        group = field.annotation if field is not None else None
        if not (isinstance(group, type) and issubclass(group, Settings)):
            return None
    return group


def _lines(error: ValidationError) -> Iterator[str]:
    for mistake in error.errors():
        path = mistake["loc"]
        name = ".".join(map(str, (GROUP, *path)))
        group = _group(path[:-1])
        if mistake["type"] == "extra_forbidden" and group is not None:
            yield _unknown(name, group)
        elif mistake["type"] == "value_error":
            reason = mistake["msg"].removeprefix("Value error, ")
            yield f"{name}={mistake['input']!r} {reason}" if _group(path) is None else f"{name}: {reason}"
        elif group is None or _group(path) is not None:
            yield f"{name}={mistake['input']!r} is not allowed; it must be a group of settings"
        else:
            words = allowed(group.model_fields[str(path[-1])])
            yield f"{name}={mistake['input']!r} is not allowed; it must be {words}"


def _unknown(name: str, group: type[Settings]) -> str:
    near = get_close_matches(name.rpartition(".")[2], group.model_fields, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"{name} is unknown; {hint}allowed: {', '.join(group.model_fields)}"


def _remove(values: Any, path: Sequence[Any]) -> None:
    for name in path[:-1]:
        if not isinstance(values, dict):
            return
        values = values.get(name)
    if isinstance(values, dict) and path:
        values.pop(path[-1], None)
