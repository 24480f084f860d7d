"""Requests to a model's only server bypass verl's load balancer; several servers, or a router, keep it."""

from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerManager
from verl.workers.rollout.replica import TokenOutput

from verl_comprl.trainer.servers.single_server_client import LoneServerClient, make_client
from verl_comprl.trainer.trainer import ComplementaryColocateAsync, ComplementarySync


class Server:
    """Answers like a server's actor handle."""

    def __init__(self, reasons: list[str]) -> None:
        self.generate = SimpleNamespace(remote=self._generate)
        self.requests: list[dict[str, Any]] = []
        self._reasons = reasons

    async def _generate(self, **request: Any) -> TokenOutput:
        self.requests.append(request)
        extra = {"global_steps": len(self.requests)}
        return TokenOutput(token_ids=[7], log_probs=[-1.0], stop_reason=self._reasons.pop(0), extra_fields=extra)


def servers(count: int, reasons: list[str], **rollout: Any) -> Any:
    manager: Any = LLMServerManager.__new__(LLMServerManager)
    rollout = {"name": "vllm", "response_length": 8, "prompt_length": 8, **rollout}
    manager.config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}})
    manager.rollout_config = manager.config.actor_rollout_ref.rollout
    manager.server_handles = [Server(reasons) for _ in range(count)]
    manager.server_addresses = [f"host:{number}" for number in range(count)]
    manager.global_load_balancer = None  # anything that asks it fails
    return manager


@pytest.mark.parametrize("resuming", [False, True])
async def test_a_request_goes_to_the_only_server(resuming: bool) -> None:
    manager = servers(1, ["completed"])
    output = await make_client(manager, resuming=resuming).generate(
        "episode", prompt_ids=[1, 2], sampling_params={"max_tokens": 4}
    )
    (request,) = manager.server_handles[0].requests
    assert request["prompt_ids"] == [1, 2] and output.token_ids == [7]


async def test_an_aborted_generation_is_resumed() -> None:
    manager = servers(1, ["aborted", "completed"])
    client = make_client(manager, resuming=True)
    output = await client.generate("episode", prompt_ids=[1, 2], sampling_params={"max_tokens": 4})
    assert [request["prompt_ids"] for request in manager.server_handles[0].requests] == [[1, 2], [1, 2, 7]]
    assert output.token_ids == [7, 7]


@pytest.mark.parametrize(("count", "settings"), [(2, {}), (1, {"router_config_path": "router.yaml"})])
def test_verls_clients_are_used_where_requests_are_routed(count: int, settings: dict[str, Any]) -> None:
    manager = servers(count, [], **settings)
    clients = make_client(manager), make_client(manager, resuming=True)
    assert [isinstance(client, FullyAsyncLLMServerClient) for client in clients] == [False, True]
    assert not any(isinstance(client, LoneServerClient) for client in clients)


def test_who_may_be_interrupted_by_new_weights_gets_a_client_that_resumes() -> None:
    """A plain one would return a turn that a weight sync has cut."""
    resumes = {}
    for kind in (ComplementarySync, ComplementaryColocateAsync):
        trainer: Any = object.__new__(kind)
        trainer.llm_server_manager = servers(1, [])
        clients = (trainer.get_llm_client(), trainer.resuming_client())
        resumes[trainer.base_mode] = [isinstance(client, FullyAsyncLLMServerClient) for client in clients]
    # In sync mode the servers get new weights when no rollout is under way; distillations are.
    assert resumes == {"sync": [False, True], "colocate_async": [True, True]}
