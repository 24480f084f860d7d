"""The extractor's vLLM server beside the actor's, in one Ray job.

verl names server actors and weight-transfer sockets after the replica rank, which a hybrid adapter derives from its
process rank; two models in one job would collide. The extractor's replicas therefore live under their own rollout name
and start at their own rank.
"""

import os

import ray
from verl.single_controller.ray import RayWorkerGroup
from verl.workers.rollout.replica import RolloutMode
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMReplica
from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

from verl_comprl.names import EXTRACTOR_ROLLOUT

FIRST_REPLICA_RANK = 1000


class ExtractorServerAdapter(ServerAdapter):
    """Trainer side of the weight sync: addresses the extractor's replica of this worker."""

    def __init__(self, *args, **kwargs) -> None:
        """Take verl's arguments; shift the replica rank and the socket that is named after it."""
        super().__init__(*args, **kwargs)
        self.replica_rank += FIRST_REPLICA_RANK
        job = ray.get_runtime_context().get_job_id()
        local_rank = self.rollout_rank % int(os.environ["RAY_LOCAL_WORLD_SIZE"])
        self.zmq_handle = f"ipc:///tmp/rl-colocate-zmq-{job}-replica-{self.replica_rank}-rank-{local_rank}.sock"


class ExtractorReplica(vLLMReplica):
    """Server side: a vLLM replica under the extractor's name."""

    def _get_server_name_prefix(self) -> str:
        return f"{EXTRACTOR_ROLLOUT}_"

    async def init_hybrid(self, worker_group: RayWorkerGroup) -> None:
        """Launch the server on the workers of this replica; they are counted from 0, the rank is not."""
        self.rollout_mode = RolloutMode.HYBRID
        first = self.world_size * (self.replica_rank - FIRST_REPLICA_RANK)
        self.workers = worker_group.workers[first : first + self.world_size]
        await self.launch_servers()
