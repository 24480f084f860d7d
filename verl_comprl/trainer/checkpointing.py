"""Mixin over verl's V1 trainers that writes and loads a whole checkpoint: verl's part and ours, as one cut.

Nothing is trained while it is written. The extractor's learner waits, too; episodes that continue with an asynchronous
trainer are in verl's TransferQueue first, so that an episode whose tokens are in the checkpoint has been reported.
"""

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import ENOSPC
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, open_dict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback

from verl_comprl.config.composing import one_line
from verl_comprl.experience import EmbedderUnavailable, LeaseLost, StoreError
from verl_comprl.trainer.checkpoint.contents import is_written_in
from verl_comprl.trainer.checkpoint.folders import CheckpointFolders, step_of
from verl_comprl.trainer.checkpoint.full_disk import is_full
from verl_comprl.trainer.checkpoint.manifest import MODEL
from verl_comprl.trainer.engine_sharing import EngineSharing
from verl_comprl.trainer.late_reports import EpisodesMissing
from verl_comprl.trainer.no_experience_runtime import NoExperienceRuntime

STORE_SECONDS = 180.0
"""Seconds that the last checkpoint waits for an unreachable bank server, or for an embedder's endpoint."""

_PAUSE = 5.0

_KEEP_ALL = {"remove_previous_ckpt_in_save": False, "max_actor_ckpt_to_keep": None, "max_critic_ckpt_to_keep": None}


class CheckpointingTrainer(EngineSharing):
    """Mixin over verl's trainers whose checkpoints are complete or not there."""

    def __init__(self, config: DictConfig) -> None:
        """Take verl's config."""
        super().__init__(config)
        self.experience_runtime: NoExperienceRuntime = NoExperienceRuntime()
        self._resumed_from: Path | None = None
        self._saved_step = -1
        """Step of the latest checkpoint in the run's folder."""
        self._saves_failed = 0

    @property
    def _folder(self) -> Path:
        return Path(self.config.trainer.default_local_dir)

    def _save_checkpoint(self) -> None:
        """Write a checkpoint; one for which the disk has no room, or the bank's server no answer, costs nothing else.

        Nor does one that would lack episodes which the experience manager has not confirmed. The last one is tried for
        some minutes where a server is away, and written without such episodes, as nothing else will save what has been
        trained.

        Raises:
            OSError: If the disk is full (ENOSPC), whatever has failed for that, and nothing will be saved later.
            StoreError: If the bank's store stays away, likewise; at once if another process has become its writer.
            TornCheckpoint: If something is missing; the checkpoints that there were are kept.
        """
        self.experience_runtime.hold_updates()
        try:
            self._try_to_save()
        finally:
            self.experience_runtime.resume_updates()

    def _try_to_save(self) -> None:
        deadline = time.monotonic() + STORE_SECONDS
        while True:
            try:
                return self._write_checkpoint()
            except LeaseLost:  # for good: nothing would ever be saved, of the models neither
                self._abandon()
                raise
            except (StoreError, EmbedderUnavailable, EpisodesMissing) as error:
                if self._is_last_save and time.monotonic() >= deadline:
                    raise
                self._abandon()
                reason = one_line(error)
            except Exception as error:  # a full disk has many faces
                if not is_full(error, self._folder):
                    raise
                self._abandon()
                # What a Ray worker raised arrives as an exception whose text is the whole remote traceback.
                reason = f"the disk is full ({one_line(getattr(error, 'cause', None) or error)})"
                if self._is_last_save:
                    raise OSError(ENOSPC, reason, str(self._folder)) from error
            what = "trying again" if self._is_last_save else "the run continues without it"
            print(f"no checkpoint of step {self.global_steps}, {what}: {reason}", flush=True)
            if not self._is_last_save:
                self._saves_failed += 1
                return None
            time.sleep(_PAUSE)

    def _abandon(self) -> None:
        CheckpointFolders(self._folder).abandon()

    @property
    def _is_last_save(self) -> bool:
        return self._is_stopped or self.global_steps >= self.total_training_steps

    @property
    def _is_stopped(self) -> bool:
        """Whether the run was asked to stop."""
        return False

    def step(self, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        """Train the actor, and add how many checkpoints could not be written."""
        batch = super().step(metrics, timing_raw)
        # verl does not call _update_actor before trainer.critic_warmup.
        self._hold_updates_before_save()
        metrics["comprl/saves_failed"] = float(self._saves_failed)
        return batch

    def _update_actor(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Update the actor; where the step ends with a checkpoint, the extractor begins no update from here on.

        Otherwise the step's outcomes, which are collected immediately before the checkpoint, would start one, and the
        actor would wait for all of it. One that is running has the time of the actor's update to end.
        """
        if self.local_trigger_step == self.parameter_sync_step - 1:  # the last of a step's local updates
            self._hold_updates_before_save()
        return super()._update_actor(batch, metrics)

    def _hold_updates_before_save(self) -> None:
        if self._is_save_due:
            self.experience_runtime.hold_updates()

    @property
    def _is_save_due(self) -> bool:
        """Whether verl saves at the end of the present step."""
        frequency = self.config.trainer.save_freq
        return frequency > 0 and (self.global_steps >= self.total_training_steps or self.global_steps % frequency == 0)

    def _write_checkpoint(self) -> None:
        """Write verl's part and ours aside, verify them and give them their name.

        verl itself writes in place, and removes the checkpoint before last before the new one is complete.
        """
        folders, step, settings = CheckpointFolders(self._folder), self.global_steps, self.config.trainer
        aside = folders.begin()
        callback, self.checkpoint_callback = self.checkpoint_callback, CheckpointCallback()
        try:
            with self._trainer_settings(default_local_dir=str(aside), **_KEEP_ALL):
                super()._save_checkpoint()
        finally:
            self.checkpoint_callback = callback
        missing = self.experience_runtime.save(aside / f"global_step_{step}", step, lambda: self._is_stopped)
        if missing:
            if not self._is_last_save:
                raise EpisodesMissing(missing)
            print(f"the checkpoint of step {step} is written nevertheless: {missing}", flush=True)
        self._settle_records()
        keep = 1 if settings.get("remove_previous_ckpt_in_save") else settings.get("max_actor_ckpt_to_keep")
        saved = folders.finish(step, (MODEL, "data.pt", *self.experience_runtime.checkpoint_parts), keep)
        self._saved_step = step
        self.experience_runtime.note_checkpoint(saved)
        callback.on_save(trainer=self, global_step=step, checkpoint_dir=str(saved), async_save=False)

    def _settle_records(self) -> None:
        """Wait for the records of episodes that the checkpoint has as trained."""

    def _load_checkpoint(self) -> None:
        """Load verl's part of the checkpoint that was chosen; verl would take the one that its marker names."""
        chosen = self._resumed_from
        mode = {"resume_mode": "resume_path", "resume_from_path": str(chosen)} if chosen else {"resume_mode": "disable"}
        with self._trainer_settings(**mode):
            super()._load_checkpoint()
        if self._resumes_itself:
            self._saved_step = self.global_steps

    def take_back_marker(self, tell: Callable[[str], object] = lambda text: None) -> None:
        """Let the next start continue from here, not from later checkpoints of the part of the run that is given up.

        Args:
            tell: Called with a line if complete ones are given up.
        """
        if self.config.trainer.val_only:
            return
        folders, own = CheckpointFolders(self._folder), self._own_checkpoint
        if own and not self._resumes_itself:
            folders.adopt(own)
        step = step_of(own) if own else 0
        if given_up := folders.take_back(step):
            what = "they stay until the run has saved beyond them, or needs the room"
            tell(f"the run begins again after step {step} and gives up its checkpoints of {given_up}; {what}")

    @cached_property
    def _own_checkpoint(self) -> Path | None:
        """The checkpoint that is resumed if it is one of this run: in its folder, or a copy of one."""
        folder = self._resumed_from
        is_own = folder is not None and (self._resumes_itself or is_written_in(folder, self._folder))
        return folder if is_own else None

    @property
    def _resumes_itself(self) -> bool:
        """Whether the checkpoint is one of this run, and not of another folder."""
        if self._resumed_from is None:
            return False
        own = self._folder / f"global_step_{step_of(self._resumed_from)}"  # which may be a link to a larger disk
        return own.exists() and own.samefile(self._resumed_from)

    @contextmanager
    def _trainer_settings(self, **changes: Any) -> Iterator[None]:
        """Let verl read other settings under ``trainer`` meanwhile."""
        given = self.config
        self.config = copy.deepcopy(given)
        with open_dict(self.config):
            self.config.trainer.update(changes)
        try:
            yield
        finally:
            self.config = given
