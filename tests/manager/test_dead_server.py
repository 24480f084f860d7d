"""The manager's Ray actor when the process of the extractor's server is killed: no engine, but real processes."""

import asyncio
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from ray_manager import manager_class, start_ray

from verl_comprl.config.tree import ComprlConfig
from verl_comprl.experience import Add, BankConfig
from verl_comprl.experience.schema import DistillationRequest
from verl_comprl.extractor.calls import Sampling
from verl_comprl.extractor.config import QueueConfig
from verl_comprl.extractor.credit import ONE_STEP
from verl_comprl.manager.messages import EpisodeReport
from verl_comprl.rollout.guidance import Guidance

pytestmark = pytest.mark.run


class Server:
    """Takes a second for its first answer, and a minute for each later one."""

    seconds = 1.0

    def pid(self) -> int:
        return os.getpid()

    async def generate(self) -> list[int]:
        seconds, self.seconds = self.seconds, 60.0
        await asyncio.sleep(seconds)
        return [ord(character) for character in "<answer>go left</answer>"]


class Client:
    """In the place of verl's client."""

    def __init__(self, server: Any) -> None:
        self._server = server

    async def generate(self, *_: Any, **__: Any) -> Any:
        ids = await self._server.generate.remote()
        return SimpleNamespace(token_ids=ids, log_probs=[-0.1] * len(ids), extra_fields={"max_global_steps": 0})


async def ask(guidance: Guidance) -> str:
    """Return the status of an answer, which is ``degraded`` if the manager waits for the server."""
    return (await guidance.ask("open the door", task="t", environment="e", read_only=False, timeout=30)).status


def test_questions_are_answered_at_once_and_no_attempt_is_counted(tmp_path: Path, make_request: Any) -> None:
    import ray

    from verl_comprl.manager import actor
    from verl_comprl.manager.served_model import ServedModel

    class Manager(manager_class()):
        async def seed(self) -> None:
            add = Add(title="open the door", content="go left")
            where = {"task": "t", "environment": "e", "step": 0, "weight_version": 0}
            await self._bank.apply([add], call_id="seed", listed=(), **where)

    start_ray()
    try:
        server: Any = ray.remote(Server).remote()
        client: Any = Client(server)
        manager: Any = ray.remote(Manager).remote()
        settings = ComprlConfig(bank=BankConfig(path=str(tmp_path / "bank")), queue=QueueConfig(folder=str(tmp_path)))
        ray.get(manager.load.remote(settings, {}))
        opening = actor.Opening(keep_content=False)
        ray.get(manager.open.remote(settings, opening, run=str(tmp_path), seed=0, settling=ONE_STEP))
        ray.get(manager.seed.remote())
        ray.get(manager.connect.remote(ServedModel(client, Sampling(1.0, 1.0, -1, 64)), OmegaConf.create({}), 9999))
        guidance, request = Guidance(manager), make_request("a")
        assert isinstance(request, DistillationRequest)

        async def asking() -> None:
            assert await ask(guidance) == "answered"
            waiting = [asyncio.create_task(ask(guidance)) for _ in range(8)]
            await guidance.report(EpisodeReport(request, guided=False))
            await asyncio.sleep(0.2)
            os.kill(await server.pid.remote(), signal.SIGKILL)
            assert set(await asyncio.gather(*waiting)) == {"unavailable"}
            assert {await ask(guidance) for _ in range(8)} == {"unavailable"}

        asyncio.run(asking())
        metrics: Any = ray.get(manager.collect.remote(1))
        assert (metrics["answers/answered"], metrics["answers/unavailable"]) == (1, 16)
        assert (metrics["extractor/away"], metrics["queue/depth"], metrics["queue/retried"]) == (1, 1, 0)
        assert not any(name.startswith("failures/") for name in metrics)
        ray.get(manager.close.remote())
    finally:
        ray.shutdown()
