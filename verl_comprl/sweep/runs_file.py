"""Reads the runs of a sweep from a file."""

import json
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from verl_comprl.config.composing import one_line
from verl_comprl.config.reading import ConfigError
from verl_comprl.sweep.runs import Run


def read_runs(file: Path) -> list[Run]:
    """Read a YAML or JSON file with a list of runs, each with ``name``, ``overrides`` and perhaps ``config_name``.

    Raises:
        ConfigError: If it cannot be read or is not such a list.
    """
    try:
        if file.suffix == ".json":
            entries = json.loads(file.read_text(encoding="utf-8"))
        else:
            entries = OmegaConf.to_container(OmegaConf.load(file))
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{file} cannot be read: {one_line(error)}") from error
    if not isinstance(entries, list):
        raise ConfigError(f"{file} must be a list of runs, each with name and overrides; it is {entries!r:.80}")
    return [_read_run(entry, file) for entry in entries]


def _read_run(entry: Any, file: Path) -> Run:
    known = isinstance(entry, dict) and entry.keys() <= Run.__dataclass_fields__.keys()
    if not known or not isinstance(entry.get("name"), str | int | float):
        raise ConfigError(f"{file}: {entry!r:.200} is not a run; allowed: name (required), overrides, config_name")
    name, overrides, config_name = entry["name"], entry.get("overrides"), entry.get("config_name")
    overrides = [] if overrides is None else overrides
    if not isinstance(overrides, list) or not all(isinstance(override, str) for override in overrides):
        raise ConfigError(
            f"{file}: run {name}: overrides must be a list of key=value, such as [arm=baseline, data.seed=1]; "
            f"it is {overrides!r:.200}"
        )
    if not isinstance(config_name, str | None):
        raise ConfigError(f"{file}: run {name}: config_name must be the name of a recipe; it is {config_name!r:.80}")
    return Run(str(name), tuple(overrides), config_name)
