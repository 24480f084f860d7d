"""Clients for a model with a single server, which send their requests to it directly.

verl asks an actor before every request which server to take, and tells it afterwards that the request has ended. With
one server there is nothing to balance; in the miniature's short turns that actor alone took 5 % of all processor time.
"""

from typing import Any

from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient, LLMServerManager

from verl_comprl.trainer.servers.cancellation import CancellableServer, CancellingClient, ResumingClient


class LoneServerClient(LLMServerClient):
    """verl's client without its load balancer."""

    def __init__(self, *args: Any, server: tuple[str, Any], **kwargs: Any) -> None:
        """Take verl's arguments, and address and actor handle of the server."""
        super().__init__(*args, **kwargs)
        self._server = (server[0], CancellableServer(server[1]))

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        return self._server

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        """Do nothing: nobody counts this server's requests."""


class ResumingLoneServerClient(LoneServerClient, FullyAsyncLLMServerClient):
    """The same for verl's client that resumes aborted generations."""


def make_client(servers: LLMServerManager, *, resuming: bool = False) -> LLMServerClient:
    """Return a client of a model's servers, which must not change during the run.

    Args:
        servers: The model's servers; asked directly if there is one, and verl's own load balancer is in use.
        resuming: Resume generations that a weight sync has aborted.
    """
    balanced, direct = (ResumingClient, ResumingLoneServerClient) if resuming else (CancellingClient, LoneServerClient)
    if len(servers.server_handles) > 1 or getattr(servers.rollout_config, "router_config_path", None):
        return servers.get_client(client_cls=balanced)
    return servers.get_client(client_cls=direct, server=(servers.server_addresses[0], servers.server_handles[0]))
