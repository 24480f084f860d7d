"""A batch as our layer sees it: outputs of rollouts, what their episodes say of themselves, and what each counts.

Most rollouts have one output. Others have more: what the actor wrote as critic before the episode, or the episode as it
would have been without experience (self-distillation). Outputs of a rollout share its outcome and its weight in Eq. 5.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu

from verl_comprl.algorithm.advantage import better_than_free, output_shares, subgroup_weights
from verl_comprl.rollout.episode import OUTPUT_KEY, TASK_KEY, OutputKind
from verl_comprl.trainer.estimator import subgroup_uid


@dataclass(frozen=True)
class RolloutBatch:
    """One element per output; padding rows, which are nobody's, are not in it."""

    keys: list[str]
    """verl's, ``{uid}_{session}_{output}``."""
    prompts: list[str]
    details: list[dict[str, float]]
    """What the episode says of itself, the same for all outputs of a rollout."""
    kinds: list[OutputKind]
    tokens: list[int]
    """Tokens that the actor generated."""
    tasks: list[str] = field(default_factory=list)
    """The dataset's name of each output's task."""
    partition: Any = field(default="train")

    @classmethod
    def read(cls, batch: KVBatchMeta) -> "RolloutBatch":
        """Fetch what is needed of verl's batch."""
        keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
        partition: Any = batch.partition_id
        data = tq.kv_batch_get(
            keys=keys, partition_id=partition, select_fields=["uid", "extra_fields", "response_mask"]
        )
        extras = tu.get(data, "extra_fields")
        return cls(
            keys=keys,
            prompts=[str(uid) for uid in tu.get(data, "uid")],
            details=[extra["reward_extra_info"] for extra in extras],
            kinds=[OutputKind(extra.get(OUTPUT_KEY, OutputKind.EPISODE)) for extra in extras],
            tokens=[int(mask.sum()) for mask in data["response_mask"].unbind(0)],
            tasks=[str(extra[TASK_KEY]) for extra in extras],
            partition=partition,
        )

    @property
    def guided(self) -> list[bool]:
        """The half of each output's rollout."""
        return [bool(details["guided"]) for details in self.details]

    @property
    def rollouts(self) -> list[str]:
        """Which rollout an output is of."""
        return [key.rsplit("_", 1)[0] for key in self.keys]

    @property
    def episodes(self) -> list[int]:
        """Rows of the episodes themselves, one per rollout."""
        return [row for row, kind in enumerate(self.kinds) if kind == OutputKind.EPISODE]

    def uids(self) -> list[str]:
        """Return what the estimator gets to know of each output."""
        rows = zip(self.prompts, self.guided, self.rollouts, strict=True)
        return [subgroup_uid(prompt, guided, rollout) for prompt, guided, rollout in rows]

    def factors(self, group_size: int) -> np.ndarray:
        """Return what each output's advantage is multiplied by, so that verl's mean over rollouts becomes Eq. 5.

        verl counts each output ``1/K``; Eq. 5 counts a rollout ``½·1/K_c``, which its outputs share by tokens. Losses
        are positively homogeneous in the advantage, so a weight on an output's loss is a factor on it. Outputs for
        self-distillation are no part of Eq. 5 and get 0.

        Args:
            group_size: ``K``, the rollouts that a prompt was meant to have.
        """
        rows = self.episodes
        weights = subgroup_weights([self.prompts[row] for row in rows], [self.guided[row] for row in rows])
        of_rollout = {self.rollouts[row]: weight for row, weight in zip(rows, weights, strict=True)}
        policy = [kind != OutputKind.DISTILLATION for kind in self.kinds]
        shares = output_shares(self.rollouts, np.where(policy, self.tokens, 0).tolist())
        return np.array([of_rollout[rollout] for rollout in self.rollouts]) * shares * group_size

    def distilled(self) -> np.ndarray:
        """Return which outputs teach the actor to do without experience what it did with it, shape (outputs,)."""
        rows = self.episodes
        better = better_than_free(
            [self.details[row]["success"] for row in rows],
            [self.prompts[row] for row in rows],
            [self.guided[row] for row in rows],
        )
        chosen = {self.rollouts[row] for row, is_better in zip(rows, better, strict=True) if is_better}
        outputs = zip(self.kinds, self.rollouts, strict=True)
        return np.array([kind == OutputKind.DISTILLATION and rollout in chosen for kind, rollout in outputs])
