"""A request for whose answer nobody waits any more, in a real process of a server that never answers."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from verl.workers.rollout.llm_server import LLMServerManager
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from verl_comprl.trainer.servers.failover_client import SurvivingClient
from verl_comprl.trainer.servers.single_server_client import make_client

pytestmark = [pytest.mark.run, pytest.mark.timeout(300)]


def make_server() -> Any:
    """Return a class, of this function so that Ray sends it along with the actor."""

    class Server:
        """Says how its requests have gone."""

        def __init__(self) -> None:
            self.running = 0
            self.cancelled = 0

        async def generate(self, **_: Any) -> None:
            self.running += 1
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise

        async def counts(self) -> tuple[int, int]:
            return self.running, self.cancelled

    return Server


def test_it_ends_in_the_server_too() -> None:
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        server: Any = ray.remote(make_server()).remote()
        balancer: Any = ray.remote(GlobalRequestLoadBalancer).remote({"one": server})
        manager: Any = LLMServerManager.__new__(LLMServerManager)
        rollout = {"name": "vllm", "response_length": 8, "prompt_length": 8}
        manager.config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}})
        manager.rollout_config = manager.config.actor_rollout_ref.rollout
        manager.server_handles, manager.server_addresses, manager.global_load_balancer = [server], ["one"], balancer
        sent = [make_client(manager), make_client(manager, resuming=True), SurvivingClient(manager.config, balancer)]
        manager.server_handles = [server] * 2  # so that the balancer is asked
        sent += [make_client(manager), make_client(manager, resuming=True)]
        clients = [ray.get(ray.put(SimpleNamespace(client=client))).client for client in sent]

        async def give_up(client: Any) -> None:
            asking = asyncio.ensure_future(
                client.generate("question", prompt_ids=[1], sampling_params={"max_tokens": 4})
            )
            before = await server.counts.remote()
            while (await server.counts.remote())[0] == before[0]:
                await asyncio.sleep(0.05)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

        async def ask() -> tuple[int, int]:
            for client in clients:
                await give_up(client)
            async with asyncio.timeout(60):
                while (counts := await server.counts.remote())[1] < len(clients):
                    await asyncio.sleep(0.05)
            return counts

        assert asyncio.run(ask()) == (5, 5)
    finally:
        ray.shutdown()
