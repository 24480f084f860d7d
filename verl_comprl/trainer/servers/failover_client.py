"""Client of a model with several servers: requests to one that has died are sent to another one."""

from typing import Any

from verl.workers.rollout.replica import TokenOutput

from verl_comprl.manager.availability import ExtractorGone
from verl_comprl.manager.server_calls import is_dead
from verl_comprl.trainer.servers.cancellation import ResumingClient


class SurvivingClient(ResumingClient):
    """verl's client that resumes aborted generations, which also takes dead servers from its load balancer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take verl's arguments."""
        super().__init__(*args, **kwargs)
        self._asked: dict[str, str] = {}
        """Server of each running request."""

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        try:
            server = await super()._acquire_server(request_id, **extra)
        except RuntimeError as error:
            if "No available servers" in str(error):
                raise ExtractorGone("all servers of the extractor have died") from error
            raise
        self._asked[request_id] = server[0]
        return server

    async def generate(self, request_id: str, **request: Any) -> TokenOutput:
        """Generate; from the beginning on another server if the one that was asked has died meanwhile.

        Raises:
            ExtractorGone: If no server is left.
        """
        while True:
            try:
                return await super().generate(request_id, **request)
            except Exception as error:
                server = self._asked.get(request_id)
                if server is None or not is_dead(error):
                    raise
                await self._load_balancer.remove_servers.remote([server])
            finally:
                self._asked.pop(request_id, None)
