"""The columns of verl's actor batch that the method needs, and each rollout output's weight in Eq. 5.

Most rollouts have one output, the episode. Further outputs are the judgement that the actor wrote as critic, and the
episode without its experience (for self-distillation). Outputs of a rollout share its outcome and its weight in Eq. 5.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu

from verl_comprl.algorithm.advantage import better_than_free, output_shares, subgroup_weights
from verl_comprl.rollout.episode import OUTPUT_KEY, TASK_KEY, OutputKind
from verl_comprl.trainer.step.estimator import subgroup_uid


@dataclass(frozen=True)
class RolloutBatch:
    """Columns of a batch with one element per output; verl's padding rows are left out."""

    keys: list[str]
    """verl's keys, ``{uid}_{session}_{output}``."""
    prompts: list[str]
    """verl's uid of each output's prompt."""
    details: list[dict[str, float]]
    """Results of the episode, the same for all outputs of a rollout."""
    kinds: list[OutputKind]
    tokens: list[int]
    """Number of tokens that the actor generated."""
    tasks: list[str] = field(default_factory=list)
    """Task of each output, the ``data_source`` of its dataset row."""
    versions: list[tuple[int, int]] = field(default_factory=list)
    """Oldest and newest version of the weights that generated the output, in actor steps."""
    partition: Any = field(default="train")

    @classmethod
    def read(cls, batch: KVBatchMeta) -> "RolloutBatch":
        """Read the columns from verl's batch."""
        tags = {key: tag for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)}
        keys = list(tags)
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
            versions=[_versions(tag) for tag in tags.values()],
            partition=partition,
        )

    @property
    def guided(self) -> list[bool]:
        """Whether each output's rollout is in the guided half."""
        return [bool(details["guided"]) for details in self.details]

    @property
    def rollouts(self) -> list[str]:
        """Rollout of each output, ``{uid}_{session}``."""
        return [key.rsplit("_", 1)[0] for key in self.keys]

    @property
    def episodes(self) -> list[int]:
        """Row of each rollout's episode output."""
        return [row for row, kind in enumerate(self.kinds) if kind == OutputKind.EPISODE]

    def uids(self) -> list[str]:
        """Return each output's uid for the estimator, which carries half and rollout."""
        rows = zip(self.prompts, self.guided, self.rollouts, strict=True)
        return [subgroup_uid(prompt, guided, rollout) for prompt, guided, rollout in rows]

    def factors(self, group_size: int) -> np.ndarray:
        """Return a factor for each output's advantage that turns verl's mean over outputs into Eq. 5.

        verl gives each output the weight ``1/K``; Eq. 5 gives a rollout ``½·1/K_c``, which its outputs share by tokens.
        Outputs for self-distillation are not part of Eq. 5 and get 0.

        Args:
            group_size: ``K``, the number of rollouts that a prompt should have.
        """
        # The weights go into the advantages, so that verl's losses stay as they are. This is exact, since policy losses
        # are positively homogeneous in the advantage: a factor passes through the minimum and the ratio's clipping. On
        # the rewards the weights would be lost: the normalisation by the deviation divides them out.
        rows = self.episodes
        weights = subgroup_weights([self.prompts[row] for row in rows], [self.guided[row] for row in rows])
        of_rollout = {self.rollouts[row]: weight for row, weight in zip(rows, weights, strict=True)}
        policy = [kind != OutputKind.DISTILLATION for kind in self.kinds]
        shares = output_shares(self.rollouts, np.where(policy, self.tokens, 0).tolist())
        return np.array([of_rollout[rollout] for rollout in self.rollouts]) * shares * group_size

    def distilled(self, *, of_guided: bool = True) -> np.ndarray:
        """Return which outputs are trained on by self-distillation, shape (outputs,).

        These are the experience-free copies of episodes of one half that did better than the mean of the free half.
        """
        rows = self.episodes
        better = better_than_free(
            [self.details[row]["success"] for row in rows],
            [self.prompts[row] for row in rows],
            [self.guided[row] for row in rows],
            of_guided=of_guided,
        )
        chosen = {self.rollouts[row] for row, is_better in zip(rows, better, strict=True) if is_better}
        outputs = zip(self.kinds, self.rollouts, strict=True)
        return np.array([kind == OutputKind.DISTILLATION and rollout in chosen for kind, rollout in outputs])


def _versions(tag: dict[str, Any]) -> tuple[int, int]:
    """Return oldest and newest weight version of a row; equal if the server did not say."""
    oldest, newest = tag.get("min_global_steps"), tag.get("max_global_steps")
    return (0, 0) if oldest is None or newest is None else (oldest, newest)
