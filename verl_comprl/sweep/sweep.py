"""Trains the runs of a sweep one after the other, on engines that are started once.

A run that cannot share them starts its own. Two sets of engines cannot run side by side in one Ray job, whatever slots
are free: verl gives servers, reward workers and pools fixed names. So the shared ones are stopped before such a run,
and its own at its end.
"""

import json
import os
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from verl_comprl.config.secrets import run_redactor
from verl_comprl.display.long_waits import said_when_long
from verl_comprl.display.quiet import is_verbose
from verl_comprl.display.redirect import redirect_verl_output
from verl_comprl.display.sweep import RunDisplay, SweepDisplay
from verl_comprl.files import write_atomically
from verl_comprl.sweep.checked_run import FINISHED, CheckedRun, Record
from verl_comprl.sweep.checks import check
from verl_comprl.sweep.runs import Run, compose
from verl_comprl.train import prepare_environment
from verl_comprl.training import (
    Training,
    check_transfer_queue,
    describe_ray_start,
    queue_settings,
    start_ray,
    uninterrupted,
)


def run(
    runs: Sequence[Run],
    *,
    config_dir: Path | None = None,
    config_name: str = "comprl_trainer",
    results: Path | None = None,
) -> list[Record]:
    """Train ``runs`` one after the other and return their records; to be called before anything imports verl.

    The engines are started once, except for runs that need their own. Each run begins with the models' initial weights
    and has a folder, a bank, workers and settings of its own. A run that has finished before, with as many steps or
    more, is not repeated: its record is that of then. With fewer steps, it continues from its last checkpoint.
    One that was interrupted continues from its last checkpoint, or begins again if it has none. After a run that
    failed, the engines are started again.

    Args:
        runs: What to train.
        config_dir: Folder of the recipe; by default that of this package's configs.
        config_name: The recipe.
        results: File for the records, one line each; by default ``sweep.jsonl`` next to the runs' folders.

    Raises:
        ConfigError: Before anything starts, with one line for each mistake in any run.
    """
    prepare_environment()
    checked = check(runs, compose(runs, config_dir, config_name))
    sweep = Sweep(checked, results or checked[0].folder.parent / "sweep.jsonl")
    try:
        return sweep.run()
    finally:
        sweep.close()


class Sweep:
    """The runs, and the engines that they use."""

    def __init__(self, runs: list[CheckedRun], results: Path) -> None:
        """Start nothing yet.

        Args:
            runs: Which can share engines or need their own, see :func:`check`.
            results: File for the records.
        """
        self._runs = runs
        self._results = results
        self._redact = run_redactor(*(run.config for run in runs))
        self._display = SweepDisplay(len(runs), live=not is_verbose())
        self._engines: Any = None
        self._next: Training | None = None
        """Of the next run, whose processes have been started."""
        self._own_tensorboard = "TENSORBOARD_DIR" not in os.environ
        self._was_stopped = False

    def run(self) -> list[Record]:
        """Train what has not finished before; returns all records, which are written to the results too.

        Raises:
            KeyboardInterrupt: If a run was asked to stop and has not left for that: it failed, or had just finished.
        """
        self._results.parent.mkdir(parents=True, exist_ok=True)
        if self._results.is_file():  # a device, such as /dev/null, is not to be replaced
            write_atomically(Path(os.path.realpath(self._results)), self._lines_of_others())
        self._display.note(f"{self._plan()}; results: {self._results}")
        records: list[Record] = []
        for number, run in enumerate(self._runs, start=1):
            record, changes = run.record, run.changes
            if changes:
                self._display.note(f"{run.run.name}: what its folder has was made with {changes}")
            if record:
                more = f"with {run.stored_steps} steps" if run.surplus else ""
                self._display.ended(number, run.run.name, "finished before", 0.0, more)
            else:
                following = next((one for one in self._runs[number:] if one.record is None), None)
                record = self.train(run, following, number=number)
            records.append(record)
            with self._full_disk_noted(self._results), self._results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            if record["status"] == "interrupted":
                break
            if self._was_stopped:  # it had ended by then, or failed to write its checkpoint: no other is to begin
                raise KeyboardInterrupt
        return records

    def _lines_of_others(self) -> bytes:
        """Return what the results have of finished runs that are not in this sweep, as one with other seeds leaves."""
        own = {run.folder.resolve() for run in self._runs}
        with self._results.open("rb") as lines:
            others = [
                record
                for record in _objects(lines)
                if record.get("status") == "finished"
                and isinstance(record.get("folder"), str)
                and (folder := Path(record["folder"])).resolve() not in own
                and (folder / FINISHED).exists()
            ]
        return "".join(f"{json.dumps(record)}\n" for record in others).encode()

    @contextmanager
    def _full_disk_noted(self, path: Path) -> Iterator[None]:
        """Say that a record could not be written: the run has ended, and others come."""
        try:
            yield
        except OSError as error:
            self._display.note(f"the record of this run could not be written to {path}: {error}")

    def _plan(self) -> str:
        """Return in one line how many runs there are, and on which engines."""
        own = sum(bool(run.own_engines) for run in self._runs)
        if not own:
            return f"{len(self._runs)} runs on the same engines"
        return f"{len(self._runs)} runs, {own} of them with engines of their own"

    def train(self, run: CheckedRun, following: CheckedRun | None = None, *, number: int = 1) -> Record:
        """Train one run and return its record.

        Args:
            run: The run.
            following: The next run, whose own processes are started meanwhile if it shares the engines.
            number: Its number in the sweep.
        """
        display = self._display.run()
        before = run.seconds
        started = time.perf_counter()
        run.folder.mkdir(parents=True, exist_ok=True)
        if not run.checkpoint:
            run.forget_unfinished()  # of which nothing remains in a run that begins again
        log = run.folder / "train.log"
        with redirect_verl_output(log, self._display.note, self._redact):
            if run.own_engines:
                print("engines of its own: " + "; ".join(run.own_engines))
                self.close()
            self._start_ray(run)
            status, error = self._try(run, following, display)
            if run.own_engines:
                self.close()
        display.close()
        seconds = time.perf_counter() - started
        record: Record = {
            "name": run.run.name,
            "overrides": run.overrides,
            "folder": str(run.folder),
            "status": status,
            "steps": run.begun_steps,
            "seconds": round(before + seconds, 1),
            "error": error,
            "metrics": display.metrics(),
        }
        with self._full_disk_noted(run.folder):
            run.keep(record)
        self._display.ended(
            number, run.run.name, status, seconds, display.outcome() if not error else f"{error} · {log}"
        )
        return record

    def _try(self, run: CheckedRun, following: CheckedRun | None, display: RunDisplay) -> tuple[str, str]:
        """Return how the run ended, and the last line of its error."""
        from verl_comprl.trainer.stopping import RunInterrupted

        try:
            self._train(run, following, display)
        except (RunInterrupted, KeyboardInterrupt, SystemExit) as error:  # the last one from Ray's handler of SIGTERM
            return "interrupted", str(error)
        except Exception as error:
            print(traceback.format_exc())
            self.close()  # an engine may be what has failed
            # What a Ray actor raised arrives as an exception of its own type whose text is the whole remote traceback.
            cause = getattr(error, "cause", None) or error
            return "failed", self._redact(f"{type(cause).__name__}: {cause}").splitlines()[0]
        return "finished", ""

    def _train(self, run: CheckedRun, following: CheckedRun | None, display: RunDisplay) -> None:
        from verl_comprl.config.saved import save_config
        from verl_comprl.trainer.watchdog.ending import RunHung
        from verl_comprl.trainer.watchdog.liveness import ProcessLost

        lost = False
        training, self._next = self._next or self.make_training(run), None

        def begun(steps: int) -> None:
            save_config(run.config, run.folder, steps)
            run.begun_steps = steps
            display.resume(*run.reached())  # of the checkpoint: what came after it has been put aside
            if following is not None and not (run.own_engines or following.own_engines):
                self._next = self._prepared(following)

        if self._own_tensorboard:
            os.environ["TENSORBOARD_DIR"] = str(run.folder / "tensorboard")
        try:
            with training.watched(display):
                training.run(display, guided_fraction=run.guided_fraction, on_start=begun)
        except (RunHung, ProcessLost):
            lost = True
            raise
        finally:
            self._was_stopped = training.was_stopped
            if not lost:  # otherwise TransferQueue may be what hangs or has died; the engines are ended anyway
                training.release()

    def _prepared(self, run: CheckedRun) -> Training | None:
        """Start the processes of the next run; what goes wrong there is that run's failure, not the present one's."""
        try:
            training = self.make_training(run)
            self._engines.lend_actor(training.trainer)
            training.prepare()
        except Exception:  # whatever it is, it will be met and reported again when that run starts
            print(traceback.format_exc())
            return None
        return training

    def make_training(self, run: CheckedRun) -> Training:
        """Make the trainer of a run."""
        return Training(run.config, self._engines)

    def _start_ray(self, run: CheckedRun) -> None:
        """Start Ray with the slots of the run that needs most, and TransferQueue for ``run``, unless they run."""
        import ray
        import transfer_queue as tq

        from verl_comprl.config.slots import needed_slots
        from verl_comprl.config.validation import check_cluster_slots
        from verl_comprl.trainer.engines import Engines

        if self._engines is not None:
            return
        largest = max((one.config for one in self._runs), key=needed_slots)
        with said_when_long(describe_ray_start(largest), self._display.note):
            start_ray(largest)
            check_transfer_queue()
            resources = ray.cluster_resources()
        check_cluster_slots(largest, resources)
        with said_when_long("starting TransferQueue", self._display.note):
            tq.init(queue_settings(run.config))
            check_transfer_queue()  # a run that started at the same moment may have made it
        self._engines = Engines()

    def close(self) -> None:
        """Stop the engines, if there are any, and with their Ray job everything that a run has started in it."""
        from verl_comprl.platform.ray_session import close_transfer_queue, end_ray

        with uninterrupted():
            if self._engines is not None:  # otherwise it may be another run's
                close_transfer_queue()
            self._engines = self._next = None
            end_ray()


def _objects(lines: Iterable[bytes]) -> Iterator[Record]:
    """Yield the records of lines, as ``json`` writes them: a metric may be NaN."""
    for line in lines:
        with suppress(ValueError, RecursionError):  # a process was killed while it wrote it
            record = json.loads(line)
            if isinstance(record, dict):
                yield record
