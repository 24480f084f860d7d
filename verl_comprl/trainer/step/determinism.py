"""Names and order that are the same in every run with the same seed, and in a run that was resumed.

verl names prompts at random and trains on rows in the order in which their episodes ended; floating-point sums depend
on that order. Only where ``actor_rollout_ref.rollout.full_determinism`` asks for it, and only for the synchronous
trainer: the asynchronous ones train on what ends first.
"""

import uuid
from typing import Any

from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils as tu

_NAMESPACE = uuid.UUID("0c9b2f0e-6f3c-4d0e-9d6e-2f4a1b7c8d15")


def prompt_id(seed: int, step: int, number: int) -> str:
    """Return the id of the prompt that is the ``number``-th to be drawn in a step."""
    return str(uuid.uuid5(_NAMESPACE, f"{seed} {step} {number}"))


class SameOrder(PPOTrainer):
    """Mixin over verl's synchronous trainer."""

    _drawn: tuple[int, int] = (0, 0)
    """A step, and how many prompts have been drawn in it."""

    @property
    def _is_deterministic(self) -> bool:
        return self.config.actor_rollout_ref.rollout.get("full_determinism", False)

    def _fetch_one_gen_batch(self) -> TensorDict:
        """Draw prompts, and name them after seed, step and place."""
        batch = super()._fetch_one_gen_batch()
        if not self._is_deterministic:
            return batch
        step, drawn = self._drawn
        first = drawn if step == self.global_steps else 0
        self._drawn = self.global_steps, first + len(batch)
        seed = self.config.data.get("seed") or 0
        names = [prompt_id(seed, self.global_steps, first + place) for place in range(len(batch))]
        tu.assign_non_tensor_stack(batch, "uid", names)
        return batch

    def _balance_batch(self, batch: KVBatchMeta, *args: Any, **kwargs: Any) -> KVBatchMeta:
        """Sort the rows by their keys before verl deals them out."""
        if self._is_deterministic:
            batch.reorder(sorted(range(len(batch.keys)), key=batch.keys.__getitem__))
        return super()._balance_batch(batch, *args, **kwargs)
