"""Prompt groups of a run in verl's TransferQueue: what our rollouts leave there that verl's trainers do not expect."""

import math
from pathlib import Path
from typing import Any

import transfer_queue as tq
from omegaconf import DictConfig
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from verl_comprl.record import RunRecord
from verl_comprl.rollout.failures import PARTITION as FAILED
from verl_comprl.rollout.recorder import PARTITION as RECORDS
from verl_comprl.trainer.step.keys import EVALUATION, TRAIN, list_keys, prompt_of


def refill_groups_without_rows(buffer: Any, limit: int) -> None:
    """Let a replay buffer replace groups whose rollouts all failed, as it replaces failed groups of verl.

    Such a group is finished, since our agent loop returns no output instead of raising, and would be trained on as one
    of a batch; a batch of nothing else fails in verl's balancing, and verl's filter of groups refuses it.

    Args:
        buffer: verl's ``ReplayBufferAsync``; or its ``ReplayBuffer``, if it filters groups or replaces failed ones. A
            sampler of the user's own that has no such groups is left as it is.
        limit: Groups without rows, or failed ones, after which the run ends, if no other has come in between.

    Raises:
        RuntimeError: While sampling, when the limit is reached: new prompts would fail for ever.
    """
    reasons_of_verl = getattr(buffer, "_terminal_eviction_reasons", None)
    if reasons_of_verl is None:
        return
    with_rows: set[str] = set()
    in_a_row: set[str] = set()

    def reasons(global_steps: int, partition: str) -> tuple[set[str], set[str], set[str], Any]:
        if partition == EVALUATION:
            return reasons_of_verl(global_steps, partition)
        have_rows = {prompt_of(key) for key in buffer.partitions[partition]}
        finished = buffer.finished_keys[partition]
        empty = finished - have_rows
        finished -= empty  # of verl's snapshot: filtering of groups (DAPO) refuses one without rows
        stale, filtered, failed, counts = reasons_of_verl(global_steps, partition)
        if finished - with_rows:
            in_a_row.clear()
        with_rows.clear()
        with_rows.update(finished)
        in_a_row.update(empty | failed)
        if len(in_a_row) >= limit:
            raise RuntimeError(f"all rollouts of {len(in_a_row)} prompts in a row have failed")
        return stale, filtered, failed | empty, counts

    buffer._terminal_eviction_reasons = reasons


def most_without_rows(config: DictConfig) -> int:
    """Return after how many groups without rows in a row a run ends.

    Some batches: one may fail as a whole, for example because the service of an environment starts again.
    """
    return 4 * config.data.train_batch_size


def clear_leftovers(run: Path) -> int:
    """Remove what a restored TransferQueue holds and nobody will ever read; returns the number of keys.

    These are the rows that the checkpointed step was trained on, whose prompts are gone (verl clears rows after it has
    saved), and an evaluation that was going on; records of episodes that have been written, or belong to neither; and
    failed rollouts that were written to the run's folder and counted after the checkpoint, or while it was written.

    Args:
        run: Folder of the run, whose files have been taken back to the checkpoint.
    """
    partitions = list_keys()
    rows = partitions.get(TRAIN, {})
    prompts = {key for key, tag in rows.items() if tag.get("is_prompt", False)}
    written = {failure["id"] for failure in RunRecord(run).failures()}
    leftovers = {
        TRAIN: [key for key in rows if key not in prompts and prompt_of(key) not in prompts],
        EVALUATION: list(partitions.get(EVALUATION, {})),
        FAILED: [key for key in partitions.get(FAILED, {}) if key in written],
        RECORDS: [key for key in partitions.get(RECORDS, {}) if prompt_of(key) not in prompts],
    }
    for partition, keys in leftovers.items():
        if keys:
            tq.kv_clear(keys=keys, partition_id=partition)
    return sum(map(len, leftovers.values()))


def episodes_are_running() -> bool:
    """Whether a prompt has been submitted whose episodes have not all ended.

    Raises:
        WaitTimeout: If TransferQueue does not answer.
    """
    partitions = list_keys()
    tags = (
        tag for name in (TRAIN, EVALUATION) for tag in partitions.get(name, {}).values() if tag.get("is_prompt", False)
    )
    return any(tag.get("status") in ("pending", "running") for tag in tags)


class SubmittedAhead(PPOTrainer):
    """Mixin over verl's asynchronous trainers, which submit prompts some batches ahead."""

    def __init__(self, config: DictConfig) -> None:
        """Take verl's config."""
        super().__init__(config)
        refill_groups_without_rows(self.replay_buffer, most_without_rows(config))
        self._left_over = 0
        """Prompts that are in flight for a step which the run that is resumed has not trained, as it was stopped."""

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        clear_leftovers(Path(self.config.trainer.default_local_dir))

    def on_train_begin(self) -> None:
        """Before the first step."""
        ahead = self.config.trainer.v1[self.trainer_mode].num_warmup_batches * self.config.data.train_batch_size
        self._left_over = max(0, self._restored_tq_prompt_count - math.floor(ahead))
        super().on_train_begin()

    def _add_batch_to_generate(self) -> None:
        """Submit a batch of prompts, less those left over: otherwise every stop would add a batch for good."""
        size = self.config.data.train_batch_size
        present = min(self._left_over, size)
        self._left_over -= present
        if not present:
            super()._add_batch_to_generate()
        elif present < size:
            self._add_prompts_to_generate(size - present)
