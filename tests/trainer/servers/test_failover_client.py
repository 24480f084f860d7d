"""Requests to several servers, of which some have died: verl's client and load balancer, without their processes."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from ray.exceptions import ActorDiedError
from verl.workers.rollout.llm_server import LLMServerManager
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from verl_comprl.manager.availability import ExtractorGone
from verl_comprl.manager.server_calls import bounded, raise_if_dead
from verl_comprl.trainer.servers import load_balancer
from verl_comprl.trainer.servers.failover_client import SurvivingClient
from verl_comprl.trainer.servers.load_balancer import forget_requests


class EngineDeadError(Exception):
    """vLLM's, which is known by its name."""


class TaskError(Exception):
    """As Ray raises what a method raised."""

    cause = EngineDeadError()


class Server:
    """A server's actor handle: answers, or raises ``failure``."""

    def __init__(self) -> None:
        self.generate = SimpleNamespace(remote=self._generate)
        self.failure: Exception | None = None
        self.requests = 0

    async def _generate(self, **_: Any) -> TokenOutput:
        self.requests += 1
        if self.failure is not None:
            raise self.failure
        return TokenOutput(token_ids=[7], log_probs=[-1.0], stop_reason="completed", extra_fields={"global_steps": 1})


class Balancer:
    """verl's load balancer as its actor handle is."""

    def __init__(self, servers: dict[str, Any]) -> None:
        self.real = GlobalRequestLoadBalancer(servers)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.real, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            return method(*arguments, **options)

        # A release is not waited for.
        return SimpleNamespace(remote=lambda *a, **k: asyncio.ensure_future(call(*a, **k)))


@pytest.fixture
def servers() -> dict[str, Server]:
    return {name: Server() for name in "abc"}


@pytest.fixture
def balancer(servers: dict[str, Server]) -> Balancer:
    return Balancer(servers)


@pytest.fixture
def client(balancer: Balancer) -> Any:
    rollout = {"name": "vllm", "response_length": 8}
    return SurvivingClient(OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}}), balancer)


def ask(client: Any, number: int) -> Any:
    return client.generate(f"request {number}", prompt_ids=[1], sampling_params={"max_tokens": 1})


@pytest.mark.parametrize("failure", [ActorDiedError(), TaskError()])
async def test_only_the_dead_server_is_left_out(
    client: Any, balancer: Balancer, servers: dict[str, Server], failure: Exception
) -> None:
    servers["b"].failure = failure
    outputs = await asyncio.gather(*(ask(client, number) for number in range(12)))
    assert [output.token_ids for output in outputs] == [[7]] * 12
    await asyncio.sleep(0)
    assert balancer.real.get_status()["servers"] == {"a": 0, "c": 0}
    before = servers["b"].requests
    await ask(client, 12)
    assert servers["b"].requests == before and client._asked == {}


async def test_the_extractor_is_gone_when_the_last_server_has_died(client: Any, servers: dict[str, Server]) -> None:
    for server in servers.values():
        server.failure = ActorDiedError()
    for number in range(2):
        with pytest.raises(ExtractorGone):
            await bounded(lambda _, number=number: ask(client, number), 5)(None)  # pyright: ignore[reportArgumentType]
    assert sum(server.requests for server in servers.values()) == 3


async def test_a_request_that_fails_for_another_reason_fails(
    client: Any, balancer: Balancer, servers: dict[str, Server]
) -> None:
    for server in servers.values():
        server.failure = KeyError("no such token")
    with pytest.raises(KeyError, match="no such token"):
        await ask(client, 0)
    assert len(balancer.real.get_all_servers()) == 3 and client._asked == {}


def test_an_engine_that_has_died_in_a_living_server_is_noticed() -> None:
    engine = SimpleNamespace(errored=False, dead_error=EngineDeadError())
    for server in (SimpleNamespace(engine=engine), SimpleNamespace(engine=None), SimpleNamespace()):
        raise_if_dead(server)
    engine.errored = True
    with pytest.raises(EngineDeadError):
        raise_if_dead(SimpleNamespace(engine=engine))


def test_requests_of_killed_processes_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the next run of a sweep, every server is to get its share."""
    names = ["a", "b", "dead"]
    real = GlobalRequestLoadBalancer({name: f"handle of {name}" for name in names})
    for number in range(9):
        real.acquire_server(f"of the run before {number}")
    assert real.get_total_inflight() == 9
    calls = {name: SimpleNamespace(remote=getattr(real, name)) for name in dir(real) if name.endswith("_servers")}
    manager: Any = object.__new__(LLMServerManager)
    manager.global_load_balancer = SimpleNamespace(**calls)
    monkeypatch.setattr(load_balancer, "wait_for", lambda result, *_: result)
    left = [SimpleNamespace(server_address=name, server_handle=f"handle of {name}") for name in names[:2]]
    forget_requests(manager, left)
    assert real.get_status()["servers"] == {"a": 0, "b": 0}
    assert real.acquire_server("of the next run")[1].startswith("handle of")
