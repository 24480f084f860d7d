"""Complementary RL as one layer over any of verl's V1 trainers, and our trainers by name (``trainer.v1.trainer_mode``).

Owns the order of things in a run: what complements the actor, then the actor (verl's); actor steps with subgroup
advantages; what is collected after a step; checkpoints of everything. The extractor learns beside it (``complement``).
"""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from omegaconf import DictConfig, open_dict
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.experimental.agent_loop import AgentLoopManager
from verl.trainer.ppo.v1.trainer_base import PPOTrainer, register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.debug import marked_timer

from verl_comprl.algorithm.advantage import subgroup_weights
from verl_comprl.plugin import ADVANTAGE_ESTIMATOR
from verl_comprl.rollout.episode import EVALUATION_KEY
from verl_comprl.trainer import metrics as comprl_metrics
from verl_comprl.trainer.checkpoint import resume_folder
from verl_comprl.trainer.complement import Complement, NoComplement
from verl_comprl.trainer.estimator import subgroup_uid
from verl_comprl.trainer.evaluation import evaluation_metrics
from verl_comprl.trainer.progress import Progress

EVALUATIONS = "evaluations.jsonl"
"""In the run's folder: a line of metrics per evaluation."""


class RunInterrupted(Exception):
    """The run was asked to stop; a checkpoint has been written."""


class _MarkedAgentLoops:
    """verl's agent loop manager, which tells every episode whether it is an evaluation."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def generate_sequences(self, prompts: TensorDict) -> None:
        # The worker drops verl's own "validate" before an agent loop sees the row.
        tu.assign_non_tensor_data(prompts, EVALUATION_KEY, bool(tu.get(prompts, "validate", default=False)))
        self._manager.generate_sequences(prompts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)


@dataclass(frozen=True)
class _Rows:
    """Rollouts of a batch: where they are, which prompt they belong to, what their episodes say of themselves."""

    partition: str
    keys: list[str]
    prompts: list[str]
    details: list[dict[str, float]]

    @property
    def guided(self) -> list[bool]:
        return [bool(details["guided"]) for details in self.details]


class ComplementaryLayer(PPOTrainer):
    """Goes in front of one of verl's V1 trainer classes; ``base_mode`` is verl's name of that class."""

    base_mode: str

    def __init__(self, config: DictConfig) -> None:
        """Take verl's config with our ``comprl`` and ``extractor`` subtrees."""
        with open_dict(config):
            # verl compares the mode with its own names in several places.
            config.trainer.v1.trainer_mode = self.base_mode
        super().__init__(config)
        self.replay_buffer.poll_interval = config.comprl.poll_interval
        self.complement: NoComplement = NoComplement()
        self.progress = Progress()
        self._stop_requested = False
        self._saved_step = -1

    # ---- start and end ----

    def _setup(self) -> None:
        folder = resume_folder(self.config)
        if self.config.comprl.experience:
            self.complement = Complement(self.config, keep_content=folder is not None)
        # Two models start at the same time: most of it is waiting for one process after the other.
        with ThreadPoolExecutor(1, thread_name_prefix="extractor-start") as background:
            starting = background.submit(self.complement.start)
            super()._setup()
            starting.result()
        self.complement.connect(folder)

    def fit(self, agent_loop_manager: AgentLoopManager) -> None:
        """Train; the extractor learns in the background for as long as the actor does."""
        self.complement.begin()
        try:
            marked: Any = _MarkedAgentLoops(agent_loop_manager)
            super().fit(marked)
            self.progress.finish(self.complement.finish(), self._saved_paths())
        finally:
            self.complement.stop()

    def request_stop(self) -> None:
        """Finish the running step, write a checkpoint and leave :meth:`fit` with :class:`RunInterrupted`."""
        self._stop_requested = True

    def close(self) -> None:
        """Close the bank cleanly."""
        self.complement.close()

    # ---- one actor step ----

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Let verl compute advantages with the half in the uid, then apply the weights of Eq. 5.

        With any other estimator than ours all rollouts of a prompt are compared, as verl does.
        """
        rows = self._rows(batch)
        metrics.update(comprl_metrics.rollout_metrics(rows.details))
        if self.config.algorithm.adv_estimator != ADVANTAGE_ESTIMATOR:
            return super()._compute_advantage(batch, metrics)
        uids = [subgroup_uid(uid, guided) for uid, guided in zip(rows.prompts, rows.guided, strict=True)]
        tq.kv_batch_put(keys=rows.keys, partition_id=rows.partition, fields=tu.get_tensordict({"uid": uids}))
        batch = super()._compute_advantage(batch, metrics)
        advantages = self._advantages(rows)
        outcomes = [float(row[row.abs().argmax()]) for row in advantages]
        metrics.update(comprl_metrics.advantage_metrics(outcomes, rows.guided))
        self._weigh(rows, advantages)
        return batch

    def _rows(self, batch: KVBatchMeta) -> "_Rows":
        """Return the real rows of a batch; padding rows are nobody's rollout."""
        keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
        partition: Any = batch.partition_id
        data = tq.kv_batch_get(keys=keys, partition_id=partition, select_fields=["uid", "extra_fields"])
        details = [extra["reward_extra_info"] for extra in tu.get(data, "extra_fields")]
        return _Rows(partition, keys, [str(uid) for uid in tu.get(data, "uid")], details)

    def _advantages(self, rows: "_Rows") -> list[torch.Tensor]:
        """Return the advantages per token; those of tokens that are not the actor's are 0."""
        data = tq.kv_batch_get(keys=rows.keys, partition_id=rows.partition, select_fields=["advantages"])
        return list(data["advantages"].unbind(0))

    def _weigh(self, rows: "_Rows", advantages: list[torch.Tensor]) -> None:
        """Scale advantages so that verl's mean over K rollouts becomes ``½ Σ_c (1/K_c) Σ_k`` (Eq. 5).

        Losses are positively homogeneous in the advantage, so a weight on a rollout's loss is a factor on it.
        """
        factors = subgroup_weights(rows.prompts, rows.guided) * self.config.actor_rollout_ref.rollout.n
        if np.allclose(factors, 1.0):
            return
        scaled = [row * factor for row, factor in zip(advantages, factors.tolist(), strict=True)]
        nested = torch.nested.as_nested_tensor(scaled, layout=torch.jagged)
        fields = TensorDict({"advantages": nested}, batch_size=len(rows.keys))
        tq.kv_batch_put(keys=rows.keys, partition_id=rows.partition, fields=fields)

    def on_step_end(self) -> None:
        """After the actor's step: outcomes become samples, the bank is merged on its schedule."""
        super().on_step_end()
        step = self.global_steps
        with marked_timer("comprl_collect", self.timing_raw):
            step_metrics = self.complement.collect(step)
        self._pending_sync_metrics = {**(getattr(self, "_pending_sync_metrics", None) or {}), **step_metrics}
        if self._stop_requested:
            if self._saved_step != step:
                self._save_checkpoint()
            raise RunInterrupted(f"stopped after step {step}; checkpoint in {self.config.trainer.default_local_dir}")

    def _compute_metrics(self, batch: KVBatchMeta, metrics: dict, *args: Any, **kwargs: Any) -> None:
        super()._compute_metrics(batch, metrics, *args, **kwargs)
        self.progress.step(self.global_steps, self.total_training_steps, metrics)

    # ---- evaluation ----

    def _val_metrics_update(self, data_sources: Any, sample_uids: Any, infos: dict[str, list], *args: Any, **kw: Any):
        """Add our two arms, with and without experience, to verl's validation metrics."""
        ours = evaluation_metrics(data_sources, infos)
        kept = {name: values for name, values in infos.items() if name in ("reward", "success")}
        result = super()._val_metrics_update(data_sources, sample_uids, kept, *args, **kw) | ours
        self.progress.evaluation(self.global_steps, ours)
        folder = Path(self.config.trainer.default_local_dir)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / EVALUATIONS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": self.global_steps, **ours}) + "\n")
        return result

    def _saved_paths(self) -> dict[str, str]:
        folder = Path(self.config.trainer.default_local_dir).resolve()
        paths: dict[str, Any] = {"run": folder}
        if self.config.comprl.experience:
            bank = self.config.comprl.bank
            paths["bank"] = f"{bank.url} {bank.collection}" if bank.url else Path(bank.path).resolve()
        if self._saved_step >= 0:
            paths["checkpoint"] = folder / f"global_step_{self._saved_step}"
        if "tensorboard" in self.config.trainer.logger:
            paths["tensorboard"] = Path(os.environ.get("TENSORBOARD_DIR", "tensorboard_log")).resolve()
        return {name: str(path) for name, path in paths.items()}

    # ---- checkpoints ----

    def _save_checkpoint(self) -> None:
        """Write our part first: verl's marker file, which makes a checkpoint count, comes last."""
        self.complement.save(self.global_steps)
        super()._save_checkpoint()
        self._saved_step = self.global_steps


@register_trainer("comprl_sync")
class ComplementarySync(ComplementaryLayer, PPOTrainerSync):
    """Actor rollouts and updates alternate; the extractor works beside both."""

    base_mode = "sync"


@register_trainer("comprl_colocate_async")
class ComplementaryColocateAsync(ComplementaryLayer, PPOTrainerColocateAsync):
    """As verl's ``colocate_async``."""

    base_mode = "colocate_async"


@register_trainer("comprl_separate_async")
class ComplementarySeparateAsync(ComplementaryLayer, PPOTrainerSeparateAsync):
    """As verl's ``separate_async``."""

    base_mode = "separate_async"
