"""The extractor as a second model in the run: its own engine, optimizer, server and weight sync.

Owns the workers. ``servers.serving`` gives the servers new weights; ``learner`` decides when to update, and on
which batch.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import ray
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
from verl_comprl.config.slots import EXTRACTOR_POOL, extractor_slots
from verl_comprl.errors import UpdateMade
from verl_comprl.extractor.buffer import TrainingBatch
from verl_comprl.extractor.calls import Generate
from verl_comprl.manager.served_model import ServedModel, sampling_of
from verl_comprl.names import FIRST_EXTRACTOR_REPLICA
from verl_comprl.platform.allocator import engine_variables
from verl_comprl.platform.priority import Priority, set_cpu_priority
from verl_comprl.platform.waiting import Patience, begin, call_within, result_within, wait_for
from verl_comprl.trainer.engine_worker import EngineWorker
from verl_comprl.trainer.extractor.batch import balanced, to_tensordict
from verl_comprl.trainer.servers.failover_client import SurvivingClient
from verl_comprl.trainer.servers.load_balancer import forget_requests
from verl_comprl.trainer.servers.serving import Serving, State
from verl_comprl.trainer.servers.single_server_client import make_client

STOP_SECONDS = 120.0
"""Seconds that a run waits for a running update of the extractor once it was asked to stop: for its last checkpoint, if
an earlier one has an extractor, and again at its end, when nothing of the update is saved any more. Both, the actor's
part and the bank have to end within the ten minutes that torchrun gives a stopped run (docs/launch.md)."""


def extractor_view(config: DictConfig) -> DictConfig:
    """Return the config with the extractor in the actor's place, as verl's components for one model read it.

    verl's workers, servers and checkpoint engine know one model only, at ``actor_rollout_ref``. Interpolations are
    resolved before the subtree moves, since several of verl's are absolute and would otherwise read the actor's values.
    """
    comprl = comprl_config(config)
    view: Any = OmegaConf.create(OmegaConf.to_container(config, resolve=True))
    with open_dict(view):
        view.actor_rollout_ref = view.pop("extractor")
        view.trainer.nnodes, view.trainer.n_gpus_per_node = extractor_slots(config, comprl)
        if comprl.extractor.placement != "split":  # servers on the slots of the workers, which verl lays out by this
            view.actor_rollout_ref.rollout.n_gpus_per_node = view.trainer.n_gpus_per_node
        view.data.train_batch_size = comprl.extractor.batch_size
        view.data.max_prompt_length = view.actor_rollout_ref.rollout.prompt_length
        view.data.max_response_length = view.actor_rollout_ref.rollout.response_length
    return view


class ExtractorRuntime:
    """Workers, servers and weight sync of the extractor."""

    def __init__(self, config: DictConfig, pool: RayResourcePool | None = None) -> None:
        """Start engine and server, which takes about as long as for the actor.

        Args:
            config: The run's :func:`extractor_view`.
            pool: The actor's slots, if the extractor is to share them; None takes slots of its own.
        """
        self.config = config
        comprl = comprl_config(config)
        self._work_timeout, self._update_timeout = comprl.work_timeout, comprl.update_timeout
        self.weight_version = 0
        """Updates that the engine has made, those that came to their end after their limit included."""
        self.hurries: Callable[[], bool] = lambda: False
        """Says that an update is to be left behind after :data:`STOP_SECONDS`."""
        self._updating: Future[TensorDict] | None = None
        """An update that has begun and whose end has not been seen."""
        self.lock = threading.RLock()
        """Held during an update and while a checkpoint is written, so that weights and training counts match."""
        model = self.config.actor_rollout_ref
        pool = pool or RayResourcePool(
            process_on_nodes=[self.config.trainer.n_gpus_per_node] * self.config.trainer.nnodes,
            use_gpu=True,
            max_colocate_count=3,
            name_prefix=EXTRACTOR_POOL,
        )
        split = comprl.extractor.placement == "split"
        role = "actor" if split else "actor_rollout"  # verl's names for a worker without a server and with one
        worker = RayClassWithInitArgs(cls=ray.remote(EngineWorker), config=model, distillation_config=None, role=role)
        group = RayWorkerGroup(
            resource_pool=pool,
            ray_cls_with_init=create_colocated_worker_cls(class_dict={role: worker}),
            device_name=self.config.trainer.device,
            worker_env=engine_variables(),
        )
        self.workers = group.spawn(prefix_set={role})[role]
        self.workers.init_model()
        # Any: verl's @auto_await makes these calls blocking outside an event loop, which type checkers cannot see.
        self.servers: Any = LLMServerManager.create(
            config=self.config,
            worker_group=None if split else self.workers,
            start_rank=FIRST_EXTRACTOR_REPLICA,
        )
        checkpoint_engine = omega_conf_to_dataclass(model.rollout.checkpoint_engine)
        if not split:
            checkpoint_engine.backend = "naive"
        control: Any = CheckpointEngineManager(
            config=checkpoint_engine, actor_wg=self.workers, replicas=self.servers.get_replicas()
        )
        control.sleep_replicas()
        self.serving = Serving(control, shares_memory=model.rollout.free_cache_engine and not split)
        self._set_cpu_priority()

    def _set_cpu_priority(self) -> None:
        """Set the priority of engine and server, which nothing waits for during an actor step except questions."""
        priority: Priority = comprl_config(self.config).extractor.cpu_priority
        self._work(partial(self.workers.set_cpu_priority, priority), "take their priority")
        servers = [server for replica in self.serving.replicas for server in replica.servers]
        setting = [server.__ray_call__.remote(lambda _: set_cpu_priority(priority)) for server in servers]
        wait_for(setting, self._work_timeout, "the extractor's servers to take their priority")

    def restart(self, config: DictConfig) -> None:
        """Begin another run: initial weights in the engine, new optimizer, version 0; the server pauses.

        Args:
            config: The :func:`extractor_view` of that run.
        """
        self.serving.tell = lambda there: None  # nobody waits for what the server still generates for the run before
        self.serving.pause()
        forget_requests(self.servers, self.serving.replicas)
        self.config = self.servers.config = config
        comprl = comprl_config(config)
        self._work_timeout, self._update_timeout = comprl.work_timeout, comprl.update_timeout
        self._work(partial(self.workers.restart, config.actor_rollout_ref), "begin another run")
        self.weight_version, self._updating, self.hurries = 0, None, lambda: False
        self._set_cpu_priority()

    @property
    def model(self) -> DictConfig:
        """Model whose tokenizer encodes prompts."""
        return self.config.actor_rollout_ref.model

    @property
    def prompt_length(self) -> int:
        """Tokens of the longest prompt."""
        return self.config.actor_rollout_ref.rollout.prompt_length

    def generate(self, actor: LLMServerClient) -> Generate:
        """Return what answers the extractor's calls: its own servers, not the actor's."""
        return ServedModel(self.client(), sampling_of(self.config.actor_rollout_ref.rollout))

    def client(self) -> LLMServerClient:
        """Return a client that survives weight syncs, resuming under the new weights, and the death of servers."""
        if len(self.servers.server_handles) > 1:
            return self.servers.get_client(client_cls=SurvivingClient)
        return make_client(self.servers, resuming=True)

    def changing_weights(self) -> AbstractContextManager[None]:
        """Return a context for :meth:`update`, at whose end the servers have the engine's weights and answer.

        Generations that are running when the weights change are aborted, and resumed by the client.
        """
        return self.serving.changing_weights(
            lambda: self.weight_version, lambda: self.work_is_late, self._update_timeout
        )

    @property
    def is_down(self) -> bool:
        """Whether the servers could not be restored after an update."""
        return self.serving.state is State.DOWN

    @property
    def lost_servers(self) -> int:
        """Servers that have died."""
        return self.serving.lost

    def restore(self) -> None:
        """Try again to let the servers answer, if they could not be restored after an update, or lack a late one."""
        if self.is_down or self.serving.version != self.weight_version:
            self.serving.publish(self.weight_version, self._update_timeout)

    def update(self, batch: TrainingBatch) -> dict[str, float]:
        """Take one CISPO step (Eq. 3) in the engine.

        The token mean is over the whole batch, whatever the micro-batches and ranks: one mini-batch, one epoch.

        Raises:
            WaitTimeout: If it takes longer than its limit. It continues: :meth:`wait_for_late_work`.
            ray.exceptions.RayError: What a worker raised.
        """
        model = self.config.actor_rollout_ref
        size = len(batch.records)

        def take_step() -> TensorDict:
            data = to_tensordict(balanced(batch, self._data_ranks()))
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
            try:
                output = self.workers.update_actor(data)
            except UpdateMade:
                self.weight_version += 1
                raise
            self.weight_version += 1  # here, since nobody may be waiting any more
            return output

        self._updating = begin(take_step, "the extractor's update")
        metrics: dict[str, Any] = tu.get(self._end_of_update(), "metrics")
        return {name.removeprefix("actor/"): float(value) for name, value in reduce_metrics(metrics).items()}

    def _data_ranks(self) -> int:
        """Return how many ranks a batch is divided among, which the workers know; sequence parallelism lowers it."""
        known = self.workers._dispatch_info
        if "actor" not in known:
            known["actor"] = self.workers._query_dispatch_info("actor")
        return max(known["actor"]) + 1

    def wait_for_late_work(self) -> None:
        """Wait for an update or a copy of weights that took longer than its limit, if there is one, as long again.

        Nothing else can be asked of the workers before it has ended.

        Raises:
            WaitTimeout: If it is still running.
            ray.exceptions.RayError: What a worker raised in an update.
        """
        if self._updating is not None:
            self._end_of_update()
        self.serving.wait_for_late_transfer(self._update_timeout)

    def _end_of_update(self) -> TensorDict:
        running: Any = self._updating
        try:
            limit = Patience(self._update_timeout, hurried=STOP_SECONDS, hurries=self.hurries)
            return result_within(running, limit, "the extractor's workers to update")
        finally:
            if running.done():
                self._updating = None

    def publish_weights(self) -> None:
        """Copy the engine's weights to the servers and let them generate."""
        self.serving.publish(self.weight_version, self._work_timeout)

    @property
    def work_is_late(self) -> bool:
        """Whether an update or a copy of weights that took longer than its limit continues.

        To be asked by the one who holds the lock, or updates in turns: others cannot tell it from one in time.
        """
        return self.serving.transfer_is_late or (self._updating is not None and not self._updating.done())

    def save(self, folder: Path) -> None:
        """Write engine and optimizer state."""
        self._work(partial(self.workers.save_checkpoint, str(folder), None, self.weight_version), "save")

    def load(self, folder: Path, weight_version: int) -> None:
        """Read what :meth:`save` wrote."""
        self._work(partial(self.workers.load_checkpoint, local_path=str(folder)), "load")
        self.weight_version = weight_version

    def _work(self, call: Callable[[], Any], what: str) -> Any:
        return call_within(call, self._work_timeout, f"the extractor's workers to {what}")
