"""Complementary RL as a mixin over verl's V1 trainers, and the trainers made with it (``trainer.v1.trainer_mode``).

Owns the order of events in a run: start, actor steps with subgroup advantages, collection of outcomes after each step,
evaluation, checkpoints, and its end. The extractor is trained in the background by ``experience_runtime``.
"""

from contextlib import suppress
from functools import partial
from typing import Any

from omegaconf import DictConfig, open_dict
from transfer_queue import KVBatchMeta
from verl.experimental.agent_loop import AgentLoopManager
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import HybridEngineMode, PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_separate_async import logger as separate_async_logger
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.debug import marked_timer
from verl.workers.rollout.llm_server import LLMServerClient

from verl_comprl.config.reading import comprl_config
from verl_comprl.config.slots import ACTOR_POOL, slot_groups
from verl_comprl.display.progress import Progress
from verl_comprl.folder_lock import FolderLock
from verl_comprl.manager.actor import MANAGER_SECONDS
from verl_comprl.platform.patches import accept_flush
from verl_comprl.platform.waiting import begin, call_within, result_within
from verl_comprl.record.reader import EVALUATIONS, METRICS
from verl_comprl.trainer.checkpoint.contents import (
    check_ranks,
    check_same_run,
    noted_events,
    resume_folder,
)
from verl_comprl.trainer.checkpoint.folders import step_of
from verl_comprl.trainer.evaluation import evaluation_metrics
from verl_comprl.trainer.evaluation_flag import MarkedAgentLoops
from verl_comprl.trainer.experience_runtime import CLOSE_SECONDS, HASTY_SECONDS, ExperienceRuntime
from verl_comprl.trainer.paused_episodes import PausedEpisodes
from verl_comprl.trainer.placement import reserve
from verl_comprl.trainer.run_folder.episode_log import EpisodeLog
from verl_comprl.trainer.run_folder.failures import FailureLog
from verl_comprl.trainer.run_folder.lock import lock_run
from verl_comprl.trainer.run_folder.log import append_record
from verl_comprl.trainer.run_folder.rewinding import rewind_run
from verl_comprl.trainer.run_folder.saved_paths import saved_paths
from verl_comprl.trainer.run_folder.tracking import add_metrics_file
from verl_comprl.trainer.servers.cancellation import ResumingClient
from verl_comprl.trainer.servers.limited_transfers import LimitedTransfers
from verl_comprl.trainer.servers.single_server_client import make_client
from verl_comprl.trainer.step.determinism import SameOrder
from verl_comprl.trainer.step.groups import SubmittedAhead, most_without_rows, refill_groups_without_rows
from verl_comprl.trainer.step.local_updates import LocalUpdates
from verl_comprl.trainer.stoppable import StoppableTrainer
from verl_comprl.trainer.stopping import RunInterrupted
from verl_comprl.trainer.task_sampler import share_equally
from verl_comprl.trainer.watchdog.counting import UnderWayCount
from verl_comprl.trainer.weighing import WeighedUpdates

_STARTING = "the extractor to start"


class ComplementaryTrainerMixin(WeighedUpdates, StoppableTrainer):
    """To be put before one of verl's V1 trainer classes; ``base_mode`` is verl's name of that class."""

    base_mode: str

    def __init__(self, config: DictConfig) -> None:
        """Take verl's config with our ``comprl`` and ``extractor`` subtrees."""
        with open_dict(config):
            # verl compares the mode with its own names in several places, so it must see its own name here.
            config.trainer.v1.trainer_mode = self.base_mode
        super().__init__(config)
        self.comprl = comprl_config(config)
        self.replay_buffer.poll_interval = self.comprl.poll_interval
        self.progress = Progress()
        self._failures = FailureLog(self._folder)
        self._episodes = EpisodeLog(self._folder, self.comprl.record)
        self._local = LocalUpdates()
        self._under_way = UnderWayCount()
        self._bank_before: str | None = None
        """Checksum of the bank when the latest evaluation began."""
        self._lock: FolderLock | None = None
        self._in_order = False
        """Whether the run has ended by itself or on a first request to stop."""

    # ---- start and end ----

    def prepare(self) -> None:
        """Start the experience manager."""
        if self.comprl.experience and not isinstance(self.experience_runtime, ExperienceRuntime):
            self.experience_runtime = ExperienceRuntime(self.config)

    def _setup(self) -> None:
        self._lock = lock_run(self._folder, self.progress.note)
        folder = self._resumed_from = resume_folder(self.config, self.progress.note)
        if folder is not None:
            check_same_run(folder, self.config)
            check_ranks(folder, self.config)
        self.prepare()
        own = self._own_checkpoint
        if folder and not own and (self._folder / METRICS).exists():
            what = f"{folder} is a checkpoint of another run: what is in {self._folder} is put aside"
            self.progress.note(f"{what}; to continue the run there, copy the checkpoint into that folder")
        self.experience_runtime.open(folder, is_own=own is not None)
        # Before the files: after a kill in between, the next start takes them back as well.
        self.take_back_marker(self.progress.note)
        rewind_run(self._folder, step_of(own) if own else -1, noted_events(own) if own else None)
        reserve(slot_groups(self.config))
        if self.comprl.shares_slots:  # the servers of both measure the memory that is left
            super()._setup()
            pool = self.resource_pool_manager.resource_pool_dict[ACTOR_POOL]
            start = partial(self.experience_runtime.start, self.engines, pool)
            call_within(start, self.comprl.work_timeout, _STARTING)
        else:
            # The two models start concurrently: most of a start is waiting for processes. Not in an executor, whose end
            # waits for its threads: an error of the actor, or Ctrl-C, would wait for the extractor.
            starting = begin(partial(self.experience_runtime.start, self.engines), _STARTING)
            super()._setup()
            result_within(starting, self.comprl.work_timeout, _STARTING)

    def on_init_end(self) -> None:
        """Copy the actor's weights to its servers, then connect the extractor, which may be one of them."""
        super().on_init_end()
        self.experience_runtime.connect(self._resumed_from, self.resuming_client())

    def resuming_client(self) -> LLMServerClient:
        """Return a client of the actor's servers that survives their pauses: aborted generations are resumed."""
        return self.get_llm_client()

    @property
    def _actor_is_extractor(self) -> bool:
        return self.comprl.experience and self.comprl.extractor.backend == "actor"

    def _init_dataloader(self) -> None:
        """Give the tasks of a mix equal shares of every batch; a single task is sampled as verl samples it."""
        super()._init_dataloader()
        frame: Any = getattr(self.train_dataset, "dataframe", None)  # a user's own dataset may have none
        tasks = frame["data_source"] if frame is not None else []
        if len(set(tasks)) > 1 and self.config.data.shuffle:
            self.train_dataloader = share_equally(self.train_dataloader, tasks, self.config.data.get("seed") or 0)

    def fit(self, agent_loop_manager: AgentLoopManager) -> None:
        """Train the actor; the extractor is trained in the background meanwhile."""
        self.experience_runtime.begin(agent_loop_manager.agent_loop_workers, lambda: self.stop.made)
        self.watch_over(agent_loop_manager)
        try:
            marked: Any = MarkedAgentLoops(agent_loop_manager)
            super().fit(marked)
            if not self.config.trainer.val_only:
                self.progress.activity("finishing: the extractor reads the last episodes")
                self.experience_runtime.settle_reports()  # now, as agent loops that are ended cannot be asked
            # Before the rest, since episodes that continue would keep the distillation queue from becoming empty.
            if self._actor_is_extractor:  # its servers are to read the last ones
                self.kill_episodes()
            else:
                self.end_episodes()
            if not self.config.trainer.val_only:
                totals = self.experience_runtime.finish(lambda: self.stop.made)
                self.stop_between_steps()
                self.progress.finish(totals, saved_paths(self._folder, self._saved_step, self.config, self.comprl))
            self._in_order = True
        except Exception as error:
            self._in_order = isinstance(error, RunInterrupted)
            self._failures.explain(error)
            raise
        finally:
            with suppress(Exception):  # whatever has failed, which matters more
                self.kill_episodes()
            self._episodes.close(self.global_steps)
            limit = self.comprl.work_timeout if self._in_order else HASTY_SECONDS
            self.experience_runtime.stop(limit, lambda: self.stop.made)

    def close(self) -> None:
        """Close the bank and give the folder back; without long waits after a failure or a second signal."""
        try:
            self.experience_runtime.close(CLOSE_SECONDS if self._in_order else MANAGER_SECONDS)
        finally:
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    # ---- one actor step ----

    def _settle_records(self) -> None:
        self._episodes.settle()

    def step(self, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        """Train the actor, then collect the step's outcomes and start a merge if one is due.

        This comes before ``on_step_end``, since verl saves the checkpoint of a step in between, in all its modes. A
        resumed run would otherwise lack the step's uses and its merge.
        """
        self._local = LocalUpdates()
        batch = super().step(metrics, timing_raw)
        metrics.update(self._local.metrics())
        with marked_timer("comprl_collect", timing_raw):
            metrics.update(self.experience_runtime.collect(self.global_steps))
            self._episodes.take(self.global_steps)
            metrics.update(self._episodes.metrics() | self._under_way.metrics(self))
        if not self.stop.made:
            with marked_timer("extractor_slice", timing_raw):
                # The actor's servers pause until the end of the step.
                if self.comprl.shares_slots:
                    self.free_memory()
                self.experience_runtime.take_turn(lambda: self.stop.made)
        return batch

    def on_train_begin(self) -> None:
        """Before the first step."""
        self._add_metrics_file()
        super().on_train_begin()

    def on_step_begin(self) -> None:
        """Stop if asked to; the metrics of the step before have been logged by now."""
        self.stop_between_steps()
        self.progress.activity(f"step {self.global_steps} of {self.total_training_steps}")
        super().on_step_begin()

    def on_step_end(self) -> None:
        """Write a checkpoint if asked to stop; verl has written one already if the step is one of ``save_freq``.

        Before the servers wake: their caches and the engine's weights may not fit into a device together. Neither may
        an update of the extractor that a stop has left behind, after which nobody asks them.
        """
        if self.stop.made and self._saved_step != self.global_steps:
            self._save_checkpoint()
        if not (self.stop.made and self.comprl.shares_slots and self.experience_runtime.update_is_late):
            super().on_step_end()

    def _compute_metrics(self, batch: KVBatchMeta, metrics: dict, *args: Any, **kwargs: Any) -> None:
        super()._compute_metrics(batch, metrics, *args, **kwargs)
        self._failures.collect(metrics)
        self.progress.step(self.global_steps, self.total_training_steps, metrics)

    def _add_metrics_file(self) -> None:
        """Let verl's ``Tracking`` write metrics.jsonl too."""
        add_metrics_file(self.logger, self._folder / METRICS, self.config.trainer.logger, self.progress.note)

    # ---- evaluation ----

    def on_validate_begin(self) -> None:
        """Before an evaluation; the one before training comes before :meth:`on_train_begin`."""
        self._add_metrics_file()
        self.progress.activity("evaluating")
        self._bank_before = self.experience_runtime.bank_checksum()
        super().on_validate_begin()

    def _val_metrics_update(self, data_sources: Any, sample_uids: Any, infos: dict[str, list], *args: Any, **kw: Any):
        """Add our metrics, with experience and without, to verl's validation metrics."""
        ours = evaluation_metrics(data_sources, infos)
        kept = {name: values for name, values in infos.items() if name in ("reward", "success")}
        result = super()._val_metrics_update(data_sources, sample_uids, kept, *args, **kw) | ours
        self.progress.evaluation(self.global_steps, ours)
        bank = {"bank_before": self._bank_before, "bank": self.experience_runtime.bank_checksum()}
        append_record(self._folder / EVALUATIONS, {"step": self.global_steps, **bank, **ours})
        self._failures.collect(result)
        self._episodes.take(self.global_steps)
        return result


@register_trainer("comprl_sync")
class ComplementarySync(ComplementaryTrainerMixin, SameOrder, PPOTrainerSync):
    """Actor rollouts and updates alternate (verl's ``sync``)."""

    base_mode = "sync"

    def __init__(self, config: DictConfig) -> None:
        """Take verl's config; where the buffer filters groups or replaces failed ones, so are those without rows."""
        super().__init__(config)
        buffer: Any = self.replay_buffer
        if getattr(buffer, "filter_groups_metric", None) or getattr(buffer, "sync_refill_failed_groups", False):
            refill_groups_without_rows(buffer, most_without_rows(config))

    def get_llm_client(self) -> LLMServerClient:
        """Return the client of the rollouts; the other modes add and remove servers during a run."""
        return make_client(self.llm_server_manager)

    def resuming_client(self) -> LLMServerClient:
        """Return a client of its own for the extractor's calls: the rollouts' need none that resumes in this mode."""
        return make_client(self.llm_server_manager, resuming=True)

    def prepare_step(self) -> dict:
        """Draw the prompts of the step, and keep the place at which they begin."""
        self._drawn_from = self.train_dataloader.state_dict()
        return super().prepare_step()

    def take_back_prompts(self) -> None:
        """Let the next draw be that of the step that is left: nothing of it is in the checkpoint in this mode."""
        self.train_dataloader.load_state_dict(self._drawn_from)

    def record_left_episodes(self, step: int) -> None:
        """Record them: they are played again, under other ids, or else with a record that replaces this one."""
        self._episodes.leave(self.global_steps + 1 if self._is_deterministic else step)

    def on_sample_end(self) -> None:
        """Pause the servers before they sleep or get other weights, if they answer the extractor's calls, too.

        verl relies on there being no requests: it would put the servers to sleep, or change the weights, under them.
        Paused, a server keeps what it is sent; the extractor's client sends aborted calls again.
        """
        if self._actor_is_extractor:
            self.order_servers("abort_replicas")
        super().on_sample_end()

    def on_step_end(self) -> None:
        """Let the servers continue, with the new weights."""
        super().on_step_end()
        if self._actor_is_extractor:
            self.order_servers("resume_generation_replicas")


@register_trainer("comprl_colocate_async")
class ComplementaryColocateAsync(ComplementaryTrainerMixin, SubmittedAhead, PausedEpisodes, PPOTrainerColocateAsync):
    """The next batches are rolled out while one is trained; servers pause meanwhile (verl's ``colocate_async``)."""

    base_mode = "colocate_async"

    def get_llm_client(self) -> LLMServerClient:
        """Return the client of the rollouts, which continues what a weight sync has aborted."""
        return make_client(self.llm_server_manager, resuming=True)


@register_trainer("comprl_separate_async")
class ComplementarySeparateAsync(ComplementaryTrainerMixin, SubmittedAhead, LimitedTransfers, PPOTrainerSeparateAsync):
    """Servers of their own roll out while the trainer trains (verl's ``separate_async``)."""

    base_mode = "separate_async"

    def __init__(self, config: DictConfig) -> None:
        """Take verl's config with our ``comprl`` and ``extractor`` subtrees."""
        accept_flush(separate_async_logger)
        super().__init__(config)

    def get_llm_client(self) -> LLMServerClient:
        """Return verl's client of the servers that roll out, which ends in them what nobody waits for any more."""
        trainer: Any = self  # verl's class has no types
        return trainer.standalone_server_manager.get_client(client_cls=ResumingClient)

    def pause_servers(self) -> None:
        """Abort what the servers generate; the trainer's own ones free their memory for the engine too."""
        trainer: Any = self  # verl's class has no types
        trainer.standalone_checkpoint_manager.abort_replicas(reject_request=True)
        if trainer.current_mode == HybridEngineMode.ROLLOUT:
            trainer.switch_to_trainer()
