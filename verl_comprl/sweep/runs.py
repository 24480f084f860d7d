"""The runs of a sweep: their names, overrides and configs."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from verl_comprl.config.reading import ConfigError, unknown_overrides

_SEARCH = "hydra.searchpath=[pkg://verl.trainer.config,pkg://verl_comprl.config]"


@dataclass(frozen=True)
class Run:
    """One run of a sweep."""

    name: str
    """Also the name of its folder, inside ``trainer.default_local_dir``."""
    overrides: tuple[str, ...] = ()
    """Hydra overrides of the recipe."""
    config_name: str | None = None
    """Its recipe, if it is not that of the sweep."""


def read_runs(file: Path) -> list[Run]:
    """Read a YAML or JSON file with a list of runs, each with ``name``, ``overrides`` and perhaps ``config_name``.

    Raises:
        ConfigError: If it is not such a list.
    """
    text = file.read_text(encoding="utf-8")
    entries = json.loads(text) if file.suffix == ".json" else OmegaConf.to_container(OmegaConf.create(text))
    if not isinstance(entries, list):
        raise ConfigError(f"{file} must be a list of runs, each with name and overrides; it is {entries!r:.80}")
    runs = []
    for entry in entries:
        if not isinstance(entry, dict) or "name" not in entry or not entry.keys() <= Run.__dataclass_fields__.keys():
            raise ConfigError(f"{file}: {entry!r:.200} is not a run; allowed: name (required), overrides, config_name")
        overrides = tuple(map(str, entry.get("overrides") or ()))
        runs.append(Run(str(entry["name"]), overrides, entry.get("config_name")))
    return runs


def expand(run: Run, overrides: Sequence[str]) -> list[Run]:
    """Return a run for each combination of the choices in ``overrides``, named after them.

    Choices are written as for Hydra's multirun: ``arm=baseline,complementary`` or ``data.seed=range(1,4)``.

    Args:
        run: What the runs have in common; its own overrides come last.
        overrides: With choices and without.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    options: list[list[str]] = []
    for text, override in zip(overrides, OverridesParser.create().parse_overrides(list(overrides)), strict=True):
        if override.is_discrete_sweep():
            prefix = text.partition("=")[0]
            options.append([f"{prefix}={value}" for value in override.sweep_string_iterator()])
        elif override.is_sweep_override():
            raise ConfigError(f"{text} is not a choice; allowed: key=a,b or key=range(1,4)")
        else:
            options.append([text])
    chosen = [position for position, values in enumerate(options) if len(values) > 1]
    runs = []
    for combination in itertools.product(*options):
        labels = [run.name, *(combination[position].replace("/", "_") for position in chosen)]
        runs.append(Run(",".join(filter(None, labels)) or "run", (*combination, *run.overrides), run.config_name))
    return runs


def compose(runs: Sequence[Run], config_dir: Path | None, config_name: str) -> list[Any]:
    """Return the config of each run.

    Args:
        runs: The runs.
        config_dir: Folder of the recipe; by default that of this package's configs.
        config_name: The recipe.

    Raises:
        ConfigError: If overrides do not fit the recipe, or runs have the same name.
    """
    import hydra
    from hydra.errors import HydraException

    names = [run.name for run in runs]
    mistakes = [f"run {name}: another run has the same name" for name in sorted(set(names)) if names.count(name) > 1]
    mistakes += unknown_overrides(list(dict.fromkeys(itertools.chain(*(run.overrides for run in runs)))))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    folder = config_dir.resolve() if config_dir else Path(__file__).parents[1] / "config"
    configs = []
    with hydra.initialize_config_dir(str(folder), version_base=None):
        for run in runs:
            try:
                config = hydra.compose(run.config_name or config_name, overrides=[_SEARCH, *run.overrides])
            except HydraException as error:
                raise ConfigError(f"run {run.name}: {' '.join(str(error).split())}") from error
            config.trainer.default_local_dir = f"{config.trainer.default_local_dir}/{run.name}"
            configs.append(config)
    return configs
