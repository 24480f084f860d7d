"""vLLM servers of the extractor, named so that they do not collide with the actor's in the same Ray job.

verl names server actors after the replica rank, which it derives from the process rank, so two models in one job would
use the same names. The extractor's replicas have a rollout name and ranks of their own.
"""

from verl.single_controller.ray import RayWorkerGroup
from verl.workers.rollout.replica import RolloutMode
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMReplica

from verl_comprl.names import EXTRACTOR_ROLLOUT, FIRST_EXTRACTOR_REPLICA


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
