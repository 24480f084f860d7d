"""Leaving a run on request, within seconds, with a checkpoint of everything that has been trained.

Owns where a run ends or can be left, and the end of episodes that nobody waits for.
"""

from contextlib import AbstractContextManager
from typing import Any, NoReturn

import ray
from omegaconf import DictConfig, open_dict
from ray.exceptions import RayError
from transfer_queue import KVBatchMeta
from verl.experimental.agent_loop import AgentLoopManager

from verl_comprl.errors import WaitTimeout
from verl_comprl.platform.ray_session import queue_actors
from verl_comprl.platform.waiting import call_within
from verl_comprl.record import RunRecord
from verl_comprl.trainer.checkpointing import CheckpointingTrainer
from verl_comprl.trainer.servers.serving import SERVER_SECONDS
from verl_comprl.trainer.step.groups import episodes_are_running
from verl_comprl.trainer.stopping import RunInterrupted, StopRequest, WaitingStopped
from verl_comprl.trainer.watchdog.liveness import ProcessLost, VitalActors
from verl_comprl.trainer.watchdog.processes import (
    actor_servers,
    agent_loop_workers,
    engine_workers,
    receivers,
    reward_workers,
)


class StoppableTrainer(CheckpointingTrainer):
    """Mixin over verl's trainers that leaves on request, and ends episodes that nobody waits for."""

    def __init__(self, config: DictConfig) -> None:
        """Take verl's config."""
        super().__init__(config)
        self.stop = StopRequest()
        self.vital = VitalActors()
        self.stop.interrupts(self.replay_buffer, self.vital.check)
        self._first_step = 0
        """Step with which training began; 0 while it has not, for example in an evaluation before it."""

    def watch_over(self, agent_loops: AgentLoopManager) -> None:
        """Let the death of a process that the actor needs end the run with :class:`ProcessLost`."""
        workers = agent_loop_workers(agent_loops) | reward_workers(self) | engine_workers(self) | receivers(self)
        self.vital.watch(workers | queue_actors(), actor_servers(self))

    def request_stop(self) -> None:
        """Write a checkpoint and leave :meth:`fit` with :class:`RunInterrupted` as soon as nothing is being trained."""
        self.stop.made = True

    @property
    def _is_stopped(self) -> bool:
        return self.stop.made

    def fit(self, agent_loop_manager: AgentLoopManager) -> None:
        """Train to the last step; a request that came too late for another step to begin counts all the same.

        Raises:
            RunInterrupted: If the run was asked to stop.
            ProcessLost: If a process that the actor needs has died, whatever has failed because of it.
        """
        settings = self.config.trainer
        with open_dict(settings):
            # verl ends at the first of both, and then without the checkpoint and the evaluation of a last step.
            settings.total_epochs = max(settings.total_epochs, self.total_training_steps)
            if self._lacks_evaluation():
                settings.val_before_train = True
        try:
            super().fit(agent_loop_manager)
        except (RunInterrupted, ProcessLost):
            raise
        except Exception as error:
            # A batch whose rollouts have all failed, say, or an order to a server: the death behind it comes first.
            self.vital.blame(error)
            raise
        finally:
            self.vital.watch({})  # it is left, which takes as long as it takes
        if not settings.val_only:
            self.stop_between_steps()

    def _lacks_evaluation(self) -> bool:
        """Whether the run was ended in the evaluation after the step from which it continues.

        A checkpoint is complete before its step is evaluated, and the next step is another one.
        """
        step, every = self.global_steps, self.config.trainer.test_freq
        continues = self._saved_step == step > 0 and step % max(1, every) == 0
        if every <= 0 or not (continues or step >= self.total_training_steps):
            return False
        return all(measured["step"] != step for measured in RunRecord(self._folder).evaluations())

    def stop_between_steps(self) -> None:
        """Leave if asked to; to be called when a step begins, or after the last one, where one would begin.

        Raises:
            RunInterrupted: When the checkpoint has been written.
        """
        if self.stop.made:
            self.global_steps -= 1
            self._interrupt()

    def on_train_begin(self) -> None:
        """Before the first step."""
        self._first_step = self.global_steps
        super().on_train_begin()

    def step(self, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        """Train the actor, unless a stop is requested while it waits for rollouts.

        Raises:
            RunInterrupted: When the checkpoint has been written.
        """
        self.local_trigger_step = 0  # verl sets it only when it has waited for rollouts of the step already
        try:
            return super().step(metrics, timing_raw)
        except WaitingStopped:
            if self.local_trigger_step:  # some of its local updates have been made, which cannot be undone: it counts
                self.experience_runtime.collect(self.global_steps)
            else:
                self.global_steps -= 1
                self.take_back_prompts()
            self._interrupt()

    def on_sample_begin(self) -> None:
        """Before the rollouts of an update: verl does not wait, and so asks nobody, where enough have ended already."""
        if self.stop.made:
            raise WaitingStopped
        super().on_sample_begin()

    def take_back_prompts(self) -> None:
        """Let a resumed run begin with the prompts of the step that is left; those submitted ahead are saved anyway."""

    def record_left_episodes(self, step: int) -> None:
        """Record what has ended in a step that is left, as of ``step``; what was submitted ahead is saved anyway."""

    def _validate(self) -> dict[str, float]:
        """Evaluate; a request to stop ends an evaluation without a result."""
        try:
            return super()._validate()
        except WaitingStopped:
            if not self._first_step:
                self._interrupt()
            return {}  # the next step will not begin; after the last one, fit leaves

    def _save_checkpoint(self) -> None:
        """Save; the death of a process that is not needed for it ends the run when the checkpoint is there."""
        with self._only_what_saves():
            super()._save_checkpoint()

    def _only_what_saves(self) -> AbstractContextManager[None]:
        return self.vital.only(engine_workers(self) | queue_actors())

    def _interrupt(self) -> NoReturn:
        """Write a checkpoint of the last step, unless there is one or none was trained, and leave."""
        step, only_evaluates = self.global_steps, self.config.trainer.val_only
        is_to_be_saved = bool(step) and self._saved_step != step and not only_evaluates
        with self._only_what_saves():
            if is_to_be_saved:
                self.experience_runtime.settle_reports()
            self.end_episodes(free_memory=is_to_be_saved)
            if not only_evaluates:
                # They are in the bank that is saved now, and a resume must keep them; or came after one that was saved.
                self.record_left_episodes(step if is_to_be_saved else step + 1)
            if is_to_be_saved:
                self._save_checkpoint()
        if only_evaluates:
            raise RunInterrupted("stopped before the evaluation had ended; it has no result")
        if not step:
            raise RunInterrupted("stopped before a step was trained; there is no checkpoint")
        raise RunInterrupted(f"stopped after step {step}; checkpoint in {self._folder / f'global_step_{step}'}")

    def end_episodes(self, *, free_memory: bool = False) -> None:
        """End what was submitted ahead, or a stop has left behind, so that the bank can be closed.

        Servers that cannot be paused keep the memory they have, and nothing else.

        Args:
            free_memory: Pause the servers though no episode runs, since the engine needs their memory for a checkpoint.
        """
        if not self.kill_episodes() and not free_memory:
            return
        try:
            call_within(self.pause_servers, SERVER_SECONDS, "the actor's servers to pause")
        except (WaitTimeout, RayError) as error:
            print(f"{type(error).__name__}: {error}; the run continues without it")

    def kill_episodes(self) -> bool:
        """End the agent loops, if an episode is running; returns whether one was.

        Before the servers are paused: an aborted turn would end episodes, whose outcomes would be none.
        """
        if not episodes_are_running():
            return False
        self.vital.forget(agent_loop_workers(self.agent_loop_manager))
        for worker in self.agent_loop_manager.agent_loop_workers:
            ray.kill(worker)
        return True

    def pause_servers(self) -> None:
        """Abort what the actor's servers generate, and free their memory for the engine."""
        servers: Any = self.checkpoint_manager
        servers.abort_replicas(reject_request=True)
        servers.sleep_replicas()
