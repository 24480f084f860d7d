"""Start-up checks of all runs of a sweep."""

from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from omegaconf.errors import OmegaConfBaseException

from verl_comprl.config.composing import one_line
from verl_comprl.config.reading import ConfigError
from verl_comprl.sweep.checked_run import CheckedRun
from verl_comprl.sweep.runs import Run
from verl_comprl.training import check_config


def check(runs: Sequence[Run], configs: Sequence[Any]) -> list[CheckedRun]:
    """Check the configs of ``runs``, each for itself and whether they can share engines.

    Raises:
        ConfigError: With one line for each mistake.
    """
    from verl_comprl import plugin
    from verl_comprl.compat import check_symbols
    from verl_comprl.sweep.shared_settings import conflicts, has_extractor_engine, unsupported

    if not runs:
        raise ConfigError("a sweep needs at least one run")
    check_symbols()
    plugin.verify()
    pairs = list(zip(runs, configs, strict=True))
    reference, shared = next((pair for pair in pairs if has_extractor_engine(pair[1])), pairs[0])
    # All comparisons come first: check_config completes a config.
    compared: list[list[str]] = []
    for run, config in pairs:
        try:
            compared.append([*unsupported(config), *conflicts(config, shared, reference.name)])
        except OmegaConfBaseException as error:  # a value that refers to what there is not
            raise ConfigError(f"run {run.name}: {one_line(error)}") from error
    checked: list[CheckedRun] = []
    mistakes: list[str] = []
    for (run, config), found in zip(pairs, compared, strict=True):
        try:
            with redirect_stdout(StringIO()):  # verl's remarks
                comprl = check_config(config)
            checked.append(CheckedRun(run, config, comprl.guided_fraction if comprl.experience else None))
        except (ValueError, AssertionError) as error:
            found += str(error).splitlines()
        else:
            found += filter(None, [checked[-1].mistake])
        mistakes += [f"run {run.name}: {mistake}" for mistake in found]
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return checked
