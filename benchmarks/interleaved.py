"""Lets runs take turns, step by step, on the same engines, so that other load on the machine meets all of them alike.

A sweep trains one run after the other. Here all runs of a comparison have their own trainer, agent loops, manager and
learner at the same time; all but one are at rest.
"""

import os
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from verl_comprl.sweep.checked_run import CheckedRun
from verl_comprl.sweep.sweep import Sweep

REST_SECONDS = 30.0
"""Seconds that a turn may wait for the background work of the arm before it."""


class Interleaved(Sweep):
    """Starts engines once, and an :class:`Arm` for each run."""

    def __init__(self, runs: list[CheckedRun], recording: Path) -> None:
        """Start Ray; ``recording`` is the file of the recorded extractor's answers."""
        super().__init__(runs, recording.with_name("sweep.jsonl"))
        self.recording = recording
        self.update_seconds = 0.0
        self._start_ray(runs[0])

    def arm(self, run: CheckedRun, *, extractor: str = "real") -> "Arm":
        """Start a run, whose extractor is ``real``, ``recording`` or ``recorded``."""
        from verl_comprl.trainer.engines import Engines

        def lend(view: Any, pool: Any = None) -> Any:
            from benchmarks.recorded import RecordedExtractor, RecordingClient

            if extractor == "recorded":
                return RecordedExtractor(view, self.recording, self.update_seconds)
            runtime: Any = Engines.extractor(self._engines, view, pool)
            vars(runtime).pop("client", None)
            if extractor == "recording":
                client = runtime.client()
                runtime.client = lambda: RecordingClient(client, self.recording)
            return runtime

        self._engines.extractor = lend
        run.folder.mkdir(parents=True, exist_ok=True)
        return Arm(self.make_training(run), priority=None if extractor == "recorded" else run.config)


class Arm:
    """A run whose steps are asked for one by one; between its turns it does nothing."""

    def __init__(self, training: Any, *, priority: Any) -> None:
        """Start what is the run's own, and do what verl does before its first step."""
        from verl.utils.skip import SkipManager

        from verl_comprl.trainer.evaluation_flag import MarkedAgentLoops

        self.trainer, self._training = training.trainer, training
        self.experience = bool(training.config.comprl.experience)
        self._priority = priority.comprl.extractor.cpu_priority if priority and self.experience else None
        self.trainer.init()
        training._start_agent_loops()
        self.trainer.agent_loop_manager = MarkedAgentLoops(training.agent_loops)
        self.trainer.logger = SimpleNamespace(logger={})
        self.trainer.prev_step_profile = self.trainer.curr_step_profile = self.trainer.next_step_profile = False
        SkipManager.init(training.config)
        self._has_turn = False
        if self.experience:
            learner = self.trainer.experience_runtime._learner
            update = learner._update_once
            learner._update_once = lambda may_begin: self._has_turn and update(lambda: self._has_turn and may_begin())
        self.trainer.experience_runtime.begin(training.agent_loops.agent_loop_workers)
        self.trainer.global_steps += 1
        self.trainer.on_train_begin()

    def begin_turn(self) -> None:
        """Go on, at this run's priority."""
        if self._priority:
            from verl_comprl.trainer.extractor.runtime import ExtractorRuntime

            experience = self.trainer.experience_runtime
            runtime: ExtractorRuntime = experience.extractor
            runtime.config.comprl.extractor.cpu_priority = self._priority
            runtime._set_cpu_priority()
            runtime.serving.tell = experience._tell_manager  # it is of the run that took the engines over last
        self._has_turn = True

    def end_turn(self) -> None:
        """Let the background work of the last step end."""
        if self.experience:
            import ray

            runtime = self.trainer.experience_runtime
            ray.get(runtime.manager.drain.remote(REST_SECONDS))
            with runtime.extractor.lock:
                self._has_turn = False

    def step(self) -> dict[str, Any]:
        """Take one step, exactly as in verl's ``fit``, and return its metrics."""
        import transfer_queue as tq
        from verl.utils.debug import marked_timer

        trainer, metrics = self.trainer, {}
        trainer.timing_raw = {}
        with marked_timer("step", trainer.timing_raw):
            trainer.on_step_begin()
            batch = trainer.step(metrics, trainer.timing_raw)
            trainer.on_step_end()
            metrics.update(trainer._consume_sync_metrics())
        trainer._compute_metrics(batch, metrics, trainer.timing_raw, global_steps=trainer.global_steps, epoch=0)
        tq.kv_clear(keys=batch.keys, partition_id=batch.partition_id)
        trainer.global_steps += 1
        return metrics

    def update_seconds(self) -> float:
        """Return the mean time of an update of the extractor so far."""
        metrics = self.trainer.experience_runtime._learner.metrics()
        return metrics["comprl/extractor/seconds"] / max(1.0, metrics["comprl/extractor/updates"])

    def close(self) -> None:
        """End the run's processes, without waiting for what it still does: all of it has been measured."""
        from verl_comprl.trainer.experience_runtime import HASTY_SECONDS

        self._has_turn = False
        try:
            self.trainer.experience_runtime.stop(HASTY_SECONDS)
        finally:
            self.trainer.close()


class CpuSeconds:
    """Processor time of this run's processes and of the rest of the machine."""

    def __init__(self) -> None:
        """Read the clocks."""
        self.at = time.perf_counter()
        times = psutil.cpu_times()
        self.machine = sum(times) - times.idle - times.iowait - times.guest - times.guest_nice
        self.processes: dict[str, float] = defaultdict(float)
        self.idle = 0
        for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
            try:
                used = process.cpu_times()
                name = "driver" if process.pid == os.getpid() else (process.cmdline() or ["?"])[0]
                self.processes[f"{name.rpartition('/')[2].split('.')[0]} {process.pid}"] += used.user + used.system
                self.idle += os.sched_getscheduler(process.pid) == os.SCHED_IDLE
            except (psutil.NoSuchProcess, ProcessLookupError):
                continue

    def since(self, start: "CpuSeconds") -> dict[str, Any]:
        """Return the mean cores used by each of our processes and by others, and our processes at idle priority."""
        seconds = self.at - start.at
        ours = {name: (used - start.processes.get(name, 0.0)) / seconds for name, used in self.processes.items()}
        others = (self.machine - start.machine) / seconds - sum(ours.values())
        cores = {name: round(used, 3) for name, used in ours.items() if used > 0.002}
        return {"cores": cores, "others": others, "idle": self.idle}
