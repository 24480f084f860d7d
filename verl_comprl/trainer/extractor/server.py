"""vLLM server of the extractor, named so that it does not collide with the actor's server in the same Ray job.

verl names server actors and weight-transfer sockets after the replica rank, which it derives from the process rank, so
two models in one job would use the same names. The extractor's replicas have a rollout name and ranks of their own.
"""

import asyncio
import os
from typing import Any

import ray
from verl.single_controller.ray import RayWorkerGroup
from verl.workers.rollout.replica import RolloutMode
from verl.workers.rollout.utils import ensure_async_iterator
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMReplica
from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

from verl_comprl.errors import WaitTimeout
from verl_comprl.manager.server_calls import is_dead, raise_if_dead
from verl_comprl.names import EXTRACTOR_ROLLOUT, FIRST_EXTRACTOR_REPLICA
from verl_comprl.platform.weight_transfers import TRANSFER_SECONDS, limit_transfers

# A rollout name of its own is not enough for the extractor: the socket of a weight transfer is named after Ray job and
# ranks only, so both models would use the same.


class ExtractorServerAdapter(ServerAdapter):
    """Trainer side of the weight sync: addresses the replica of the extractor that this worker belongs to."""

    def __init__(self, *args, **kwargs) -> None:
        """Take verl's arguments; shift the replica rank, and the name of the socket that contains it."""
        super().__init__(*args, **kwargs)
        limit_transfers(TRANSFER_SECONDS)
        if self.replica_rank >= FIRST_EXTRACTOR_REPLICA:
            return  # a server with slots of its own names its rank
        self.replica_rank += FIRST_EXTRACTOR_REPLICA
        job = ray.get_runtime_context().get_job_id()
        local_rank = self.rollout_rank % int(os.environ["RAY_LOCAL_WORLD_SIZE"])
        self.zmq_handle = f"ipc:///tmp/rl-colocate-zmq-{job}-replica-{self.replica_rank}-rank-{local_rank}.sock"

    async def update_weights(self, weights: Any, *args: Any, **kwargs: Any) -> None:
        """Send the weights to the server of this worker, unless it has died."""
        if not await self._server_has_died():
            await super().update_weights(weights, *args, **kwargs)
            return
        async for _ in ensure_async_iterator(weights):  # producing a weight is a collective of all workers
            pass

    async def resume(self, tags: list[str]) -> None:
        """Let the server take its memory back, unless it has died."""
        if not await self._server_has_died():
            await super().resume(tags)

    async def _server_has_died(self) -> bool:
        """Return whether the replica's first node, which has the engine, or this worker's has died.

        Raises:
            WaitTimeout: If one does not answer. This process would be blocked for good otherwise, and with it every
                later order to the engine, such as saving it.
        """
        for node in {0, self.node_rank}:
            name = f"{self._get_server_name_prefix()}server_{self.replica_rank}_{node}"
            try:
                server: Any = ray.get_actor(name)
                async with asyncio.timeout(TRANSFER_SECONDS):
                    await server.__ray_call__.remote(raise_if_dead)
            except ValueError:  # Ray knows no actor of that name any more
                return True
            except TimeoutError as error:
                raise WaitTimeout("a server of the extractor to say that it is there", TRANSFER_SECONDS) from error
            except Exception as error:
                if not is_dead(error):
                    raise
                return True
        return False


class ExtractorReplica(vLLMReplica):
    """Server side: a vLLM replica with the extractor's rollout name."""

    def _get_server_name_prefix(self) -> str:
        return f"{EXTRACTOR_ROLLOUT}_"

    async def init_hybrid(self, worker_group: RayWorkerGroup) -> None:
        """Launch the server on the workers of this replica; verl would index them with the shifted rank."""
        self.rollout_mode = RolloutMode.HYBRID
        first = self.world_size * (self.replica_rank - FIRST_EXTRACTOR_REPLICA)
        self.workers = worker_group.workers[first : first + self.world_size]
        await self.launch_servers()
