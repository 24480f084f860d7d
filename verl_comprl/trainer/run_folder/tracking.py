"""Backends of verl's ``Tracking`` in a run: its ``metrics.jsonl``, and others, none of which ends it by failing."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from verl_comprl.errors import WaitTimeout
from verl_comprl.record.reader import METRICS
from verl_comprl.trainer.run_folder.log import append_record

METRICS_FILE = "metrics_file"
"""Our name among the backends of verl's ``Tracking``."""


def add_metrics_file(tracking: Any, file: Path, wanted: str | Collection[str], say: Callable[[str], None]) -> None:
    """Add ``file`` to verl's ``Tracking``, once, and report backends that verl left out, or that fail later.

    verl continues without mlflow if it cannot be started, and says so only in its log. Any other backend that raises,
    as TensorBoard's does for good after one error of the disk, would end the run.

    Args:
        tracking: verl's.
        file: The run's metrics.
        wanted: Backends that were asked for.
        say: Called with a line.
    """
    if METRICS_FILE in tracking.logger:
        return
    names = {wanted} if isinstance(wanted, str) else {*wanted}
    if missing := sorted(names - {*tracking.logger}):
        say(f"trainer.logger: {', '.join(missing)} could not be started; the run continues without (docs/metrics.md)")
    others = {name: _MayFail(name, backend, say) for name, backend in tracking.logger.items()}
    tracking.logger = {METRICS_FILE: MetricsFile(file), **others}  # ours first: nothing keeps it from its line


class MetricsFile:
    """Backend of verl's ``Tracking`` that appends; verl's ``file`` backend empties its file when a run is resumed."""

    def __init__(self, file: Path) -> None:
        """Write to ``file``."""
        self._file = file

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Add the metrics of a step, in the format of verl's ``FileLogger``."""
        append_record(self._file, {"step": step, "data": data})


class _MayFail:
    """Backend of verl's ``Tracking`` that may fail: metrics are lost, and the run goes on."""

    def __init__(self, name: str, backend: Any, say: Callable[[str], None]) -> None:
        self._name, self._backend, self._say = name, backend, say
        self._has_failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def log(self, *args: Any, **kwargs: Any) -> None:
        self._try(self._backend.log, *args, **kwargs)

    def finish(self, *args: Any, **kwargs: Any) -> None:
        self._try(self._backend.finish, *args, **kwargs)

    def _try(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        try:
            call(*args, **kwargs)
        except WaitTimeout:  # whoever waits for it to finish has given it up
            raise
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                what = f"trainer.logger: {self._name} has failed and may lack metrics from here on"
                self._say(f"{what} ({type(error).__name__}: {error}); {METRICS} has them")
