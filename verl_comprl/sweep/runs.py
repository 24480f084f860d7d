"""The runs of a sweep: their names, overrides and configs."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf.errors import OmegaConfBaseException

from verl_comprl.config import composing
from verl_comprl.config.composing import one_line
from verl_comprl.config.reading import ConfigError, unknown_overrides
from verl_comprl.sweep.overrides import key


@dataclass(frozen=True)
class Run:
    """One run of a sweep."""

    name: str
    """Also the name of its folder, inside ``trainer.default_local_dir``."""
    overrides: tuple[str, ...] = ()
    """Hydra overrides of the recipe."""
    config_name: str | None = None
    """Its recipe, if it is not that of the sweep."""


def expand(run: Run, overrides: Sequence[str]) -> list[Run]:
    """Return a run for each combination of the choices in ``overrides``, named after them.

    Choices are written as for Hydra's multirun: ``arm=baseline,complementary`` or ``data.seed=range(1,4)``.

    Args:
        run: What the runs have in common; its own overrides come last.
        overrides: With choices and without.

    Raises:
        ConfigError: If one cannot be read, or if it would not be clear which one counts: a key is given here and for
            the run itself, or has a choice and is given again.
    """
    options = [_values(override) for override in overrides]
    keys = [key(override) for override in overrides]
    own = {key(override) for override in run.overrides}
    mistakes = [
        f"run {run.name}: {name} is given for this run and on the command line; remove one of them"
        for name in dict.fromkeys(keys)
        if name in own
    ]
    mistakes += [
        f"{override} is a choice, but {name} is given again; remove one of them"
        for override, name, values in zip(overrides, keys, options, strict=True)
        if len(values) > 1 and keys.count(name) > 1
    ]
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    chosen = [position for position, values in enumerate(options) if len(values) > 1]
    runs = []
    for combination in itertools.product(*options):
        labels = [run.name, *(combination[position].replace("/", "_") for position in chosen)]
        runs.append(Run(",".join(filter(None, labels)) or "run", (*combination, *run.overrides), run.config_name))
    return runs


def _values(text: str) -> list[str]:
    """Return an override for each value of a choice, or the only one."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        (override,) = OverridesParser.create().parse_overrides([text])
        if not override.is_sweep_override():
            return [text]
        values = list(override.sweep_string_iterator()) if override.is_discrete_sweep() else []
    except (HydraException, ValueError) as error:
        allowed = "key=value, key=a,b or key=range(1,4), with quotes around special characters"
        raise ConfigError(f"{text} cannot be read; allowed: {allowed}") from error
    if not values:
        raise ConfigError(f"{text} is not a choice; allowed: key=a,b or key=range(1,4)")
    return [f"{text.partition('=')[0]}={value}" for value in values]


def compose(runs: Sequence[Run], config_dir: Path | None, config_name: str) -> list[Any]:
    """Return the config of each run.

    Args:
        runs: The runs.
        config_dir: Folder of the recipe; by default that of this package's configs.
        config_name: The recipe.

    Raises:
        ConfigError: If the recipe cannot be read, overrides do not fit it, or runs have the same name.
    """
    names = [run.name for run in runs]
    mistakes = [f"run {name}: another run has the same name" for name in sorted(set(names)) if names.count(name) > 1]
    mistakes += unknown_overrides(list(dict.fromkeys(itertools.chain(*(run.overrides for run in runs)))))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    configs = []
    for run in runs:
        try:
            config = composing.compose(config_dir, run.config_name or config_name, run.overrides)
            folder = config.trainer.default_local_dir
        except (ConfigError, OmegaConfBaseException) as error:
            raise ConfigError(f"run {run.name}: {one_line(error)}") from error
        if not folder:
            raise ConfigError(f"run {run.name}: trainer.default_local_dir={folder} must name a folder")
        config.trainer.default_local_dir = f"{folder}/{run.name}"
        configs.append(config)
    return configs
