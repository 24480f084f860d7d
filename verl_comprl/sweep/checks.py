"""Start-up checks of all runs of a sweep."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import Any

from omegaconf.errors import OmegaConfBaseException

from verl_comprl.config.composing import one_line
from verl_comprl.config.reading import ConfigError
from verl_comprl.sweep.checked_run import CheckedRun
from verl_comprl.sweep.runs import Run
from verl_comprl.training import check_config


def check(runs: Sequence[Run], configs: Sequence[Any]) -> list[CheckedRun]:
    """Check the configs of ``runs``, each for itself, and whether those that share engines can do so.

    Raises:
        ConfigError: With one line for each mistake.
    """
    from verl_comprl import plugin
    from verl_comprl.compat import check_symbols
    from verl_comprl.sweep.shared_settings import conflicts, has_extractor_engine, needs_own_engines

    if not runs:
        raise ConfigError("a sweep needs at least one run")
    plugin.verify()
    check_symbols()
    pairs = list(zip(runs, configs, strict=True))
    # All comparisons come first: check_config completes a config.
    reasons: list[tuple[str, ...]] = []
    for run, config in pairs:
        with _naming(run):
            reasons.append(tuple(needs_own_engines(config)))
    sharing = [pair for pair, own_engines in zip(pairs, reasons, strict=True) if not own_engines]
    reference, shared = next((pair for pair in sharing if has_extractor_engine(pair[1])), (sharing or pairs)[0])
    compared: list[list[str]] = []
    for (run, config), own_engines in zip(pairs, reasons, strict=True):
        with _naming(run):
            compared.append([] if own_engines else list(conflicts(config, shared, reference.name)))
    checked: list[CheckedRun] = []
    mistakes: list[str] = []
    for (run, config), own_engines, found in zip(pairs, reasons, compared, strict=True):
        try:
            with redirect_stdout(StringIO()):  # verl's remarks
                comprl = check_config(config)
            guided_fraction = comprl.guided_fraction if comprl.experience else None
            checked.append(CheckedRun(run, config, guided_fraction, own_engines))
            found += filter(None, [checked[-1].mistake])
        except (ValueError, AssertionError) as error:
            found += str(error).splitlines()
        mistakes += [f"run {run.name}: {mistake}" for mistake in found]
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    _hold_the_longest([run.config for run in checked if not run.own_engines and has_extractor_engine(run.config)])
    return checked


def _hold_the_longest(configs: Sequence[Any]) -> None:
    """Let the server that several runs share hold the calls of each; a run has filled in what it needs itself."""
    rollouts = [config.extractor.rollout for config in configs]
    for rollout in rollouts:
        rollout.max_model_len = max((other.max_model_len or 0 for other in rollouts), default=0) or None


@contextmanager
def _naming(run: Run) -> Iterator[None]:
    """Name the run in an error about a value that refers to what there is not."""
    try:
        yield
    except OmegaConfBaseException as error:
        raise ConfigError(f"run {run.name}: {one_line(error)}") from error
