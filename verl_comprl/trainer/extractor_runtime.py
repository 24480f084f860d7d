"""The extractor as a second model in the run: its own engine, optimizer, server and weight sync.

Owns the workers and the order update → abort → sync → resume. When to update, and on which batch, is ``learner``'s.
"""

import threading
from functools import cached_property
from pathlib import Path
from typing import Any

import ray
import torch
from omegaconf import DictConfig, OmegaConf, open_dict
from tensordict import TensorDict
from verl.checkpoint_engine import CheckpointEngineManager
from verl.single_controller.ray import (
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    create_colocated_worker_cls,
)
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.metric import reduce_metrics
from verl.workers.rollout.llm_server import LLMServerClient, LLMServerManager

from verl_comprl.config.reading import comprl_config
from verl_comprl.extractor.buffer import TrainingBatch
from verl_comprl.platform.priority import Priority, set_cpu_priority
from verl_comprl.trainer.engine_worker import EngineWorker
from verl_comprl.trainer.extractor_server import FIRST_REPLICA_RANK
from verl_comprl.trainer.lone_server import make_client

_ROLE = "actor_rollout"  # verl's name for a worker with engine and server adapter


def extractor_view(config: DictConfig) -> DictConfig:
    """Return the config with the extractor in the actor's place, as verl's components for one model read it.

    verl's workers, servers and checkpoint engine know one model only, at ``actor_rollout_ref``. Interpolations are
    resolved before the subtree moves, since several of verl's are absolute and would otherwise read the actor's values.
    """
    extractor = comprl_config(config).extractor
    view: Any = OmegaConf.create(OmegaConf.to_container(config, resolve=True))
    with open_dict(view):
        view.actor_rollout_ref = view.pop("extractor")
        view.trainer.nnodes = extractor.nnodes
        view.trainer.n_gpus_per_node = extractor.n_gpus_per_node
        view.data.train_batch_size = extractor.batch_size
        view.data.max_prompt_length = view.actor_rollout_ref.rollout.prompt_length
        view.data.max_response_length = view.actor_rollout_ref.rollout.response_length
    return view


def to_tensordict(batch: TrainingBatch) -> TensorDict:
    """Return a CISPO batch in verl's no-padding layout: jagged tensors, one row per record.

    ``old_log_probs`` are the generator's, stored when the text was written (Eq. 3).
    """

    def jagged(rows: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    prompts = [torch.tensor(record.prompt_ids, dtype=torch.int64) for record in batch.records]
    responses = [torch.tensor(record.response_ids, dtype=torch.int64) for record in batch.records]
    masks = [torch.ones_like(response) for response in responses]
    log_probs = [torch.tensor(record.response_log_probs, dtype=torch.float32) for record in batch.records]
    advantages = [
        torch.full((len(response),), advantage, dtype=torch.float32)
        for response, advantage in zip(responses, batch.advantages, strict=True)
    ]
    sequences = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    return tu.get_tensordict(
        {
            "prompts": jagged(prompts),
            "responses": jagged(responses),
            "input_ids": jagged(sequences),
            "position_ids": jagged([torch.arange(len(sequence)) for sequence in sequences]),
            "response_mask": jagged(masks),
            "loss_mask": jagged(masks),
            "old_log_probs": jagged(log_probs),
            "advantages": jagged(advantages),
        }
    )


def _set_cpu_priority(_: Any, priority: Priority) -> None:
    """Run in the process of a server, which verl's class has no method for."""
    set_cpu_priority(priority)


class ExtractorRuntime:
    """Workers, servers and weight sync of the extractor."""

    def __init__(self, config: DictConfig) -> None:
        """Start engine and server, which takes about as long as for the actor.

        Args:
            config: The run's :func:`extractor_view`.
        """
        self.config = config
        self.weight_version = 0
        self.lock = threading.RLock()
        """Held during an update and while a checkpoint is written, so that weights and training counts match."""
        model = self.config.actor_rollout_ref
        pool = RayResourcePool(
            process_on_nodes=[self.config.trainer.n_gpus_per_node] * self.config.trainer.nnodes,
            use_gpu=True,
            max_colocate_count=3,
            name_prefix="comprl_extractor",
        )
        worker = RayClassWithInitArgs(cls=ray.remote(EngineWorker), config=model, distillation_config=None, role=_ROLE)
        group = RayWorkerGroup(
            resource_pool=pool,
            ray_cls_with_init=create_colocated_worker_cls(class_dict={_ROLE: worker}),
            device_name=self.config.trainer.device,
        )
        self.workers = group.spawn(prefix_set={_ROLE})[_ROLE]
        self.workers.init_model()
        # Any: verl's @auto_await makes these calls blocking outside an event loop, which type checkers cannot see.
        self.servers: Any = LLMServerManager.create(
            config=self.config, worker_group=self.workers, start_rank=FIRST_REPLICA_RANK
        )
        checkpoint_engine = omega_conf_to_dataclass(model.rollout.checkpoint_engine)
        checkpoint_engine.backend = "naive"
        self._weights: Any = CheckpointEngineManager(
            config=checkpoint_engine, actor_wg=self.workers, replicas=self.servers.get_replicas()
        )
        self._weights.sleep_replicas()
        self._set_cpu_priority()

    def _set_cpu_priority(self) -> None:
        """Set the priority of engine and server, which nothing waits for during an actor step except questions."""
        priority = comprl_config(self.config).extractor.cpu_priority
        self.workers.set_cpu_priority(priority)
        for replica in self.servers.get_replicas():
            ray.get([server.__ray_call__.remote(_set_cpu_priority, priority) for server in replica.servers])

    def restart(self, config: DictConfig) -> None:
        """Begin another run: initial weights in the engine, new optimizer, version 0; the server pauses.

        Args:
            config: The :func:`extractor_view` of that run.
        """
        # Nobody waits for what the server still generates for the run before.
        self._weights.abort_replicas()
        self._weights.sleep_replicas()
        self.config = self.servers.config = config
        self.weight_version = 0
        self.workers.restart(config.actor_rollout_ref)
        self._set_cpu_priority()

    @cached_property
    def data_parallel_size(self) -> int:
        """Ranks that a batch is split over."""
        return max(self.workers._query_dispatch_info("actor")) + 1

    def client(self) -> LLMServerClient:
        """Return a client that survives weight syncs: it resumes aborted generations under the new weights."""
        return make_client(self.servers, resuming=True)

    def update(self, batch: TrainingBatch) -> dict[str, float]:
        """Take one CISPO step (Eq. 3) and copy the new weights to the server.

        The token mean is over the whole batch, whatever the micro-batches and ranks: one mini-batch, one epoch.
        Generations that are running when the weights change are aborted, and resumed by the client.
        """
        model = self.config.actor_rollout_ref
        makes_room = model.rollout.free_cache_engine  # engine and server share a device's memory
        if makes_room:
            self._weights.abort_replicas()
            self._weights.sleep_replicas()
        size = len(batch.records)
        data = to_tensordict(batch)
        tu.assign_non_tensor(
            data,
            calculate_entropy=False,
            distillation_use_topk=False,
            distillation_only=False,
            global_batch_size=size,
            mini_batch_size=size,
            epochs=1,
            seed=model.actor.data_loader_seed,
            dataloader_kwargs={"shuffle": False},
            temperature=model.rollout.temperature,
        )
        output = self.workers.update_actor(data)
        self.weight_version += 1
        # Weights must not change under a running generation: its log-probs would belong to no version. Hence abort,
        # sync, resume; the client continues the aborted generations.
        if not makes_room:
            self._weights.abort_replicas()
        self.publish_weights()
        metrics: dict[str, Any] = tu.get(output, "metrics")
        return {name.removeprefix("actor/"): float(value) for name, value in reduce_metrics(metrics).items()}

    def publish_weights(self) -> None:
        """Copy the engine's weights to the server, which must be paused or idle, and let it generate."""
        self._weights.update_weights(self.weight_version)
        self._weights.resume_generation_replicas()

    def save(self, folder: Path, max_to_keep: int | None = None) -> None:
        """Write engine and optimizer state."""
        self.workers.save_checkpoint(str(folder), None, self.weight_version, max_ckpt_to_keep=max_to_keep)

    def load(self, folder: Path, weight_version: int) -> None:
        """Read what :meth:`save` wrote."""
        self.workers.load_checkpoint(local_path=str(folder))
        self.weight_version = weight_version
