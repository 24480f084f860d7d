"""Everything of a run except the actor: experience manager, extractor and learner, started, saved and stopped together.

The trainer holds one such object; an arm without experience holds its base class, which does nothing.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import ray
from omegaconf import DictConfig
from ray.exceptions import RayError
from verl.workers.rollout.llm_server import LLMServerClient

from verl_comprl.config.reading import comprl_config
from verl_comprl.display.units import counted
from verl_comprl.errors import WaitTimeout
from verl_comprl.experience import EmbedderUnavailable, StoreError, StoreUnavailable
from verl_comprl.manager.actor import MANAGER_SECONDS, load_manager, open_bank, start_manager
from verl_comprl.manager.messages import ManagerNotOpen
from verl_comprl.manager.opening import Opening
from verl_comprl.platform.deaths import ACTOR_AWAY
from verl_comprl.platform.waiting import Patience, wait_for
from verl_comprl.trainer.checkpoint import contents
from verl_comprl.trainer.checkpoint.folders import step_of
from verl_comprl.trainer.checkpoint.manifest import EXPERIENCE, EXTRACTOR
from verl_comprl.trainer.engines import Engines
from verl_comprl.trainer.extractor.frozen import FrozenExtractor, make_frozen_extractor
from verl_comprl.trainer.extractor.learner import ExtractorLearner
from verl_comprl.trainer.extractor.runtime import STOP_SECONDS, ExtractorRuntime, extractor_view
from verl_comprl.trainer.late_reports import REPORT_SECONDS, LateReports
from verl_comprl.trainer.manager_guard import ManagerGuard, is_connected
from verl_comprl.trainer.no_experience_runtime import NoExperienceRuntime

Metrics = dict[str, float]

CLOSE_SECONDS = 300.0
"""Limit of closing the bank, which only writes counters."""

HASTY_SECONDS = 5.0
"""Seconds that a failed or interrupted run waits for a running update of the extractor."""

_LATE = (WaitTimeout, StoreUnavailable, EmbedderUnavailable)
"""Raised while the manager does not answer in time, or cannot begin again as its bank is away."""

HUNG_FACTOR = 3.0
"""Times as long as the longest update that a checkpoint waits for one, if an earlier one has an extractor."""

DRAIN_SECONDS = 2.0
"""Seconds between two checks for a stop request while the queue is drained."""


class ExperienceRuntime(NoExperienceRuntime):
    """Experience manager, extractor and learner of a run."""

    def __init__(self, config: DictConfig) -> None:
        """Start the manager, without waiting for it.

        Args:
            config: The run's config.
        """
        self._config = config
        self._comprl = comprl_config(config)
        self._frozen = None if self._comprl.has_extractor_engine else make_frozen_extractor(config)
        self._learner: ExtractorLearner | None = None
        self.manager, self._loaded = start_manager(config)
        self.pausing = (self.manager,) if self._comprl.extractor.backend == "actor" else ()
        self.checkpoint_parts = contents.parts(has_engine=self._frozen is None)
        outage_seconds = self._comprl.watchdog.end_after
        self._guard = ManagerGuard(
            self.manager, self._restart_manager, outage_seconds=outage_seconds, then=self._repeat_unless_told
        )
        self._told = 0
        """Messages to the manager on whether the extractor is there."""
        self._is_told = True
        """Whether it has confirmed the latest one."""
        self._step = 0
        self._checkpoints: list[Path] = []
        """Our part of each complete checkpoint, in order; those that were removed since do not exist."""
        self._is_open = False
        self._late_reports = LateReports()
        self._unread = 0
        """Episodes that the latest checkpoint lacks, since the manager could not read them from its disk."""
        self._was_left_out = False
        """Whether the one before was left out for that."""
        self._collect_timeouts = 0
        self._extractor_saves_failed = 0

    def open(self, folder: Path | None, *, is_own: bool) -> None:
        """Open the bank, which fails at once if another run has it open.

        Args:
            folder: Checkpoint that is resumed; None for a new run.
            is_own: Whether it is one of this run, so that the bank keeps what it holds until it is restored.
        """
        if folder is not None:
            contents.check(folder, has_engine=self._frozen is None)
        if self._frozen is not None:
            self._frozen.check()
        self._opening = Opening(keep_content=is_own, checkpoint=folder / EXPERIENCE if folder else None)
        self._calling_manager(self._open_bank)
        self._is_open = True

    def _open_bank(self) -> None:
        wait_for(self._loaded, self._comprl.work_timeout, "the experience manager to start")
        open_bank(self.manager, self._config, self._opening)

    def _calling_manager(self, *calls: Callable[[], None]) -> None:
        """Make the last of the calls while a run starts; if the manager's process was killed, all of them in another.

        When the run has started, the guard lets it begin again.
        """
        try:
            calls[-1]()
        except (*ACTOR_AWAY, ManagerNotOpen):
            is_connected(self.manager)  # it answers: Ray starts another process, and refuses calls before
            self._loaded = load_manager(self.manager, self._config)
            for call in calls:
                call()

    def start(self, engines: Engines, pool: Any = None) -> None:
        """Start the extractor's engine and server, or take them over, unless it has none."""
        if self._frozen is not None:
            self.extractor: ExtractorRuntime | FrozenExtractor = self._frozen
            return
        self.extractor = runtime = engines.extractor(extractor_view(self._config), pool)
        self._learner = ExtractorLearner(runtime, self.manager, max_failures=self._comprl.extractor.max_failures)

    def connect(self, folder: Path | None, actor: LLMServerClient) -> None:
        """Restore from ``folder``, copy the weights to the extractor's server and connect it to the manager."""
        if folder is not None:
            contents.load_extractor(folder, self.extractor)
        self.extractor.publish_weights()
        if isinstance(self.extractor, ExtractorRuntime):
            self.extractor.serving.tell = self._tell_manager
        self._generate = self.extractor.generate(actor)
        self._calling_manager(self._open_bank, partial(self._restore_and_connect, folder))
        if folder is not None:
            self._step, self._checkpoints = step_of(folder), [folder / EXPERIENCE]
        self._guard.start()

    def _restore_and_connect(self, folder: Path | None) -> None:
        limit = self._comprl.work_timeout
        if folder is not None:
            restoring = self.manager.restore.remote(str(folder / EXPERIENCE))
            wait_for(restoring, limit, "the experience manager to restore bank, queue and buffer")
            if self._config.trainer.val_only:  # a checkpoint may be evaluated with another bank than its own
                replacing = self.manager.replace_bank.remote(self._comprl.initial_bank)
                wait_for(replacing, limit, "the experience manager to load another bank")
        self._connect_extractor()

    def _connect_extractor(self) -> None:
        of_model = self.extractor.model, self.extractor.prompt_length
        connecting = self.manager.connect.remote(self._generate, *of_model)
        wait_for(connecting, self._comprl.work_timeout, "the experience manager to connect the extractor")

    def _restart_manager(self) -> None:
        """Open the bank in a manager whose process was started again, and connect the extractor."""
        self._loaded = load_manager(self.manager, self._config)
        # Of one that was stripped since, by whichever run it is one of, the bank is left.
        whole = (path for path in reversed(self._checkpoints) if (path / "manager.json").exists())
        checkpoint = next(whole, None)
        self._opening = Opening(True, killed_in=self._step, checkpoint=checkpoint)
        self._open_bank()
        if isinstance(self.extractor, ExtractorRuntime):
            self.extractor.serving.tell_again()
        self._connect_extractor()

    def _tell_manager(self, there: bool) -> None:
        """Let the manager know that the extractor goes away or is back; the guard's thread repeats what is lost."""
        call = self.manager.back if there else self.manager.away
        self._told += 1
        what = "the experience manager to note whether the extractor is there"
        try:
            wait_for(call.remote(self._told), MANAGER_SECONDS, what)
            self._is_told = True
        except (*ACTOR_AWAY, ManagerNotOpen, WaitTimeout):  # which would abort an update
            self._is_told = False

    def _repeat_unless_told(self) -> None:
        """Tell the manager again what it has not confirmed, as it is by now; it would take it for away for good."""
        if not self._is_told and isinstance(self.extractor, ExtractorRuntime):
            self.extractor.serving.repeat()

    def begin(self, agent_loops: Sequence[Any], is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Start training the extractor in the background, unless it is frozen in this arm."""
        self._late_reports = LateReports(agent_loops, is_stopped)
        if self._learner is not None and self._comprl.extractor.train and not self._comprl.shares_slots:
            self._learner.start(is_stopped)

    def take_turn(self, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Train the extractor while the actor pauses, if they share slots."""
        if self._learner is not None and self._comprl.extractor.train and self._comprl.shares_slots:
            # Without an earlier extractor for the stop's checkpoint, this one has to be waited for anyway.
            self._learner.take_turn(
                self._comprl.extractor.slice_seconds,
                is_stopped,
                lambda: is_stopped() and self._latest_with_extractor() is not None,
            )

    @property
    def update_is_late(self) -> bool:
        """Whether an update of the extractor was left behind, and has its device still."""
        return self.extractor.work_is_late

    def collect(self, step: int) -> Metrics:
        """Turn the step's outcomes into samples, and start a merge if one is due.

        A manager that does not answer in time costs the step's metrics and its merge; it collects as soon as it can.
        """
        self._late_reports.settle(REPORT_SECONDS)  # first, so that they count in this step
        try:
            self._step = step
            metrics = _named(
                self._ask(lambda: self.manager.collect.remote(step), "the experience manager to close the step")
            )
        except _LATE as error:
            metrics = self._note_timeout(error)
        else:
            if self._learner is not None:
                self._learner.note_samples()
            self._follow_up(step)
        metrics["comprl/collect_timeouts"] = float(self._collect_timeouts)
        metrics["comprl/manager_restarts"] = float(self._guard.restarts)
        return metrics | self._late_reports.metrics() | self._learned()

    def _follow_up(self, step: int) -> None:
        """Do what comes after a step is closed, which stays closed if the manager is late with it."""
        if self._late_reports.waiting:  # for a manager that had died, and is there again
            self._late_reports.settle(REPORT_SECONDS)
        interval = self._comprl.merge.every
        try:
            if interval > 0 and step % interval == 0:  # until it has started, so that a checkpoint knows of it
                self._ask(self.manager.merge.remote, "the experience manager to start a merge")
            self._print_warnings()  # last: they would come with the next step, a merge some steps later
        except _LATE as error:  # it is asked nothing more in this step
            print(f"{error}; the run continues without it")

    def _ask(self, call: Callable[[], Any], what: str) -> Any:
        return self._guard.ask(call, MANAGER_SECONDS, what)

    def finish(self, is_stopped: Callable[[], bool]) -> Metrics:
        """Wait for the rest of the queue, at most ``comprl.drain_timeout`` seconds; not while nobody can read it."""
        try:
            seconds = 0.0 if self.extractor.is_down else self._comprl.drain_timeout
            self._drain(seconds, is_stopped)
            if self._late_reports.missing and not is_stopped():  # of a manager that hung, and has answered now
                self.settle_reports()
                self._drain(seconds, is_stopped)
            self._print_warnings()
            metrics = _named(self._ask(self.manager.metrics.remote, "the manager's metrics"))
        except _LATE as error:
            metrics = self._note_timeout(error)
        return metrics | self._learned()

    def _drain(self, seconds: float, is_stopped: Callable[[], bool]) -> None:
        """Let the manager empty its queue, in parts, between which a stop is noticed."""
        what, deadline = "the experience manager to empty its queue", time.monotonic() + seconds
        while True:
            began = time.monotonic()
            part = min(max(0.0, deadline - began), DRAIN_SECONDS)
            limit = part + MANAGER_SECONDS
            is_empty = self._guard.ask(lambda seconds=part: self.manager.drain.remote(seconds), limit, what)
            # An answer that comes early says that it is empty, or that the extractor has died.
            if is_empty or time.monotonic() - began < part or time.monotonic() >= deadline or is_stopped():
                return

    def _note_timeout(self, error: Exception) -> Metrics:
        self._collect_timeouts += 1
        print(f"{error}; the run continues without it")
        return {}

    def _learned(self) -> Metrics:
        if self._learner is None:
            return {}
        return self._learner.metrics() | {"comprl/extractor/saves_failed": float(self._extractor_saves_failed)}

    def _print_warnings(self) -> None:
        """Print what the manager warned about; the launcher redirects it to train.log."""
        _print_all(self._ask(self.manager.take_warnings.remote, "the experience manager's warnings"))

    def stop(self, seconds: float, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Let a running update finish, then stop training the extractor; both are left behind when the time is up."""
        patience = Patience(seconds, hurried=STOP_SECONDS, hurries=is_stopped)
        if self._learner is not None:
            patience.is_enough_for(self._learner.stop)
        patience.is_enough_for(self._guard.stop)
        # The manager may be what has failed; it does not begin again for this, and the run's own error matters more.
        with suppress(Exception):
            limit = min(seconds, MANAGER_SECONDS)
            _print_all(wait_for(self.manager.take_warnings.remote(), limit, "the experience manager's warnings"))

    def bank_checksum(self) -> str | None:
        """Return the checksum of the bank's entries with their counters; None if the manager is late."""
        try:
            return self._ask(self.manager.bank_checksum.remote, "the checksum of the bank")
        except _LATE as error:
            self._note_timeout(error)
            return None

    def hold_updates(self) -> None:
        """Begin no update beside the actor before :meth:`resume_updates`; one that is running continues."""
        if self._learner is not None:
            self._learner.hold_updates()

    def resume_updates(self) -> None:
        """Let the extractor be updated again."""
        if self._learner is not None:
            self._learner.resume_updates()

    def save(self, folder: Path, step: int, is_stopped: Callable[[], bool] = lambda: False) -> str:
        """Write extractor, bank, queue, buffer and counters; updates of the extractor must be held back.

        An extractor that cannot be saved costs what it has learned since the latest checkpoint, not the rest; so does
        one whose update takes much longer than any before, or is still running some time after a stop. Without an
        earlier one, there is nothing to hurry to.
        """
        earlier = self._latest_with_extractor()
        limit = self._comprl.work_timeout
        if earlier and self._learner is not None and self._learner.longest:
            usual = max(STOP_SECONDS, HUNG_FACTOR * self._learner.longest)
            limit = min(limit, usual)
        saved = contents.save(
            folder,
            step,
            self.extractor,
            self._save_manager,
            Patience(limit, hurried=STOP_SECONDS, hurries=is_stopped) if earlier else limit,
            earlier=earlier,
            given_up=self._learner is not None and self._learner.given_up,
        )
        self._extractor_saves_failed += not saved
        if missing := self._late_reports.missing or self._late_reports.lost:
            return missing
        if not self._unread:
            self._was_left_out = False
            return ""
        unread = counted(self._unread, "episode that waits", "episodes that wait")
        missing = f"{unread} on the manager's disk cannot be read at present"
        if self._was_left_out:  # a part of the disk that can never be read again must not cost every checkpoint
            print(f"the checkpoint of step {step} is written nevertheless: {missing}", flush=True)
            return ""
        self._was_left_out = True
        return missing

    def note_checkpoint(self, folder: Path) -> None:
        """Note a checkpoint of this run that is complete: a manager that is started again begins from it."""
        self._checkpoints.append(folder.resolve() / EXPERIENCE)

    def settle_reports(self) -> None:
        """Let the manager get what it has not confirmed, before the agent loops end, unless it does not answer soon.

        Whatever keeps it from that must not keep a stop from its checkpoint, which comes next and waits for longer.
        """
        with self._late_reports.told(*_LATE, StoreError):
            self._late_reports.settle_with(self._guard.ask, self.manager, MANAGER_SECONDS)

    def _save_manager(self, folder: str) -> None:
        """Let the manager save; one that dies meanwhile does so again, of what it still has."""
        # Nothing else would tell a resumed run of these episodes. The checkpoint waits for the manager as long anyway.
        self._late_reports.settle_with(self._guard.ask, self.manager, self._comprl.work_timeout)
        what = "the experience manager to save bank, queue and buffer"
        self._unread = self._guard.ask(lambda: self.manager.save.remote(folder), self._comprl.work_timeout, what)

    def _latest_with_extractor(self) -> Path | None:
        folders = (path.parent for path in reversed(self._checkpoints))
        return next((folder for folder in folders if (folder / EXTRACTOR).is_dir()), None)

    def close(self, seconds: float) -> None:
        """Close the bank, within ``seconds``, and end the manager."""
        self._guard.stop(MANAGER_SECONDS)  # of a run that failed before :meth:`stop`, it would begin the manager again
        try:
            if self._is_open:
                wait_for(self.manager.close.remote(), seconds, "the experience manager to close the bank")
        except (*_LATE, RayError, OSError, StoreError, ManagerNotOpen) as error:  # costs the counts since a flush
            print(f"the bank was not closed: {error}")
        finally:
            ray.kill(self.manager)


def _print_all(warnings: list[str]) -> None:
    for warning in warnings:
        print(f"experience manager: {warning}")


def _named(metrics: Metrics) -> Metrics:
    return {f"comprl/{name}": value for name, value in metrics.items()}
