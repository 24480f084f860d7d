"""Advantages of a batch: verl's own computation inside each half, then the weights of Eq. 5 and self-distillation."""

import math

import numpy as np
import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils as tu

from verl_comprl.config.tree import ComprlConfig
from verl_comprl.names import ADVANTAGE_ESTIMATOR
from verl_comprl.trainer.run_folder.episode_log import EpisodeLog
from verl_comprl.trainer.step.batch import RolloutBatch
from verl_comprl.trainer.step.local_updates import LocalUpdates


class WeighedUpdates(PPOTrainer):
    """Mixin over verl's trainers: what an update of the actor is trained on, and how much each output weighs."""

    comprl: ComprlConfig
    _local: LocalUpdates
    _episodes: EpisodeLog
    _stretch = 1
    """Factor by which mini-batches are larger than configured, because rollouts have several outputs."""

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Put half and rollout into the uid, let verl compute advantages, then apply the weights of Eq. 5.

        With another estimator than ours, all rollouts of a prompt are compared with one another, as in verl.
        """
        rows = RolloutBatch.read(batch)
        self._local.add(rows)
        ours = self.config.algorithm.adv_estimator == ADVANTAGE_ESTIMATOR
        if ours:
            tq.kv_batch_put(keys=rows.keys, partition_id=rows.partition, fields=tu.get_tensordict({"uid": rows.uids()}))
        batch = super()._compute_advantage(batch, metrics)
        advantages = self._advantages(rows)
        outcomes = [float(advantages[row][advantages[row].abs().argmax()]) for row in rows.episodes]
        self._episodes.trained([rows.rollouts[row] for row in rows.episodes], outcomes)
        if ours:
            self._local.add_advantages(outcomes, [rows.guided[row] for row in rows.episodes])
            self._weigh(rows, advantages, len(batch))
        return batch

    def _advantages(self, rows: RolloutBatch) -> list[torch.Tensor]:
        """Return the advantages per token; those of tokens that are not the actor's are 0."""
        data = tq.kv_batch_get(keys=rows.keys, partition_id=rows.partition, select_fields=["advantages"])
        return list(data["advantages"].unbind(0))

    def _weigh(self, rows: RolloutBatch, advantages: list[torch.Tensor], size: int) -> None:
        """Replace verl's equal weights of rollouts with those of Eq. 5, and add the loss of self-distillation.

        verl averages over outputs with equal weights and offers no hook for others. The policy loss is homogeneous in
        the advantage, so a factor on a rollout's advantages is a weight on its loss. Self-distillation,
        ``weight · Σ over its outputs of −mean log π / number of rollouts``, needs no loss of its own either: while new
        and old policy are the same, as in the first mini-batch, the gradient of a policy loss is
        ``−advantage · ∇ log π``. From the second local update of ``separate_async`` on they never are, which
        ``config/asynchrony.py`` refuses.
        """
        self._stretch = max(1, size // self._planned_rollouts) if self._several_outputs else 1
        factors = rows.factors(self.config.actor_rollout_ref.rollout.n) * self._stretch
        settings = self.comprl.self_distillation
        distilled = rows.distilled(of_guided=settings.source == "guided")
        if settings.weight > 0:
            self._local.add_distilled(float(distilled.sum()))
        if np.allclose(factors, 1.0):
            return
        # verl averages over all outputs; an output of this loss weighs as much as a rollout.
        constant = settings.weight * size / len(rows.episodes)
        changed = [row * factor for row, factor in zip(advantages, factors.tolist(), strict=True)]
        for row in np.flatnonzero(distilled):
            changed[row] = torch.full_like(advantages[row], constant)
        nested = torch.nested.as_nested_tensor(changed, layout=torch.jagged)
        fields = TensorDict({"advantages": nested}, batch_size=len(rows.keys))
        tq.kv_batch_put(keys=rows.keys, partition_id=rows.partition, fields=fields)

    # ---- rollouts with several outputs ----

    @property
    def _several_outputs(self) -> bool:
        return self.comprl.self_distillation.weight > 0 or self.comprl.actor_critic.train

    @property
    def _planned_rollouts(self) -> int:
        """Rollouts of one batch, if none failed."""
        prompts = self.config.data.train_batch_size // self.parameter_sync_step
        return prompts * self.config.actor_rollout_ref.rollout.n

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        multiple = super()._get_required_batch_multiple(dp_size)
        return math.lcm(multiple, self._planned_rollouts) if self._several_outputs else multiple

    def _update_actor(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Take as many optimizer steps as if every rollout had one output: mini-batches grow with the outputs."""
        actor = self.config.actor_rollout_ref.actor
        size = actor.ppo_mini_batch_size
        actor.ppo_mini_batch_size = size * self._stretch
        try:
            return super()._update_actor(batch, metrics)
        finally:
            actor.ppo_mini_batch_size = size
