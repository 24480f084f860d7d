"""The manager's process is killed: a real Ray actor, bank and queue; the extractor's server is a fake process."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from ray_manager import manager_class, start_ray

from verl_comprl.config.tree import ComprlConfig
from verl_comprl.experience import BankConfig
from verl_comprl.extractor.calls import Generation
from verl_comprl.extractor.config import ExtractorConfig, QueueConfig
from verl_comprl.extractor.credit import ONE_STEP
from verl_comprl.extractor.prompt_encoder import Prompt
from verl_comprl.manager.messages import EpisodeReport
from verl_comprl.trainer.manager_guard import ManagerGuard

pytestmark = pytest.mark.run


class Server:
    """Answers only while ``go`` exists."""

    def __init__(self, go: Path) -> None:
        self.go = go

    async def __call__(self, prompt: Prompt) -> Generation:
        import asyncio

        while not self.go.exists():
            await asyncio.sleep(0.05)
        answer = '<answer>[{"operation": "add", "title": "the key", "content": "is left"}]</answer>'
        return Generation([ord(character) for character in answer], [-0.1] * len(answer), 0)


def test_it_goes_on_with_its_bank_its_queue_and_the_records_of_the_checkpoint(
    tmp_path: Path, make_request: Any
) -> None:
    import ray

    from verl_comprl.manager import actor

    class Manager(manager_class()):
        async def pid(self) -> int:
            return os.getpid()

        async def known(self, record: str) -> bool:
            return self._buffer._records.get(record) is not None

    start_ray()
    try:
        manager: Any = ray.remote(Manager).options(max_restarts=-1, max_concurrency=64).remote()
        settings = ComprlConfig(
            bank=BankConfig(path=str(tmp_path / "bank")),
            queue=QueueConfig(folder=str(tmp_path / "queue")),
            extractor=ExtractorConfig(batch_size=2),
        )
        config: Any = SimpleNamespace(data={"seed": 0}, trainer=SimpleNamespace(default_local_dir=str(tmp_path)))
        go = tmp_path / "go"

        def start(opening: actor.Opening) -> None:
            ray.get(manager.load.remote())
            run = config.trainer.default_local_dir
            ray.get(manager.open.remote(settings, opening, run=run, seed=0, settling=ONE_STEP))
            ray.get(manager.connect.remote(Server(go), OmegaConf.create({}), 9999))

        def report(id: str, *, guided_by: str = "") -> None:
            read = (guided_by,) if guided_by else ()
            request = make_request(id, experience_ids=read, experience_texts=read)
            assert ray.get(manager.report.remote(EpisodeReport(request, bool(read), read)))

        go.touch()
        start(actor.Opening(keep_content=False))
        report("before")
        assert ray.get(manager.drain.remote(20))
        entry, *others = ray.get(manager.bank_entries.remote())
        assert not others and entry["title"] == "the key"
        ray.get(manager.collect.remote(1))
        ray.get(manager.save.remote(str(tmp_path / "checkpoint")))

        go.unlink()
        for id in ("a", "b", "c"):
            report(id, guided_by=entry["record_id"])
        pid: Any = ray.get(manager.pid.remote())
        guard = ManagerGuard(
            manager,
            lambda: start(actor.Opening(keep_content=True, killed_in=2, checkpoint=tmp_path / "checkpoint")),
        )
        os.kill(pid, signal.SIGKILL)
        metrics = guard.ask(lambda: manager.collect.remote(2), 60, "the step")
        assert guard.restarts == 1 and ray.get(manager.pid.remote()) != pid
        assert (metrics["bank/size"], metrics["queue/depth"], metrics["queue/dead"]) == (1, 3, 0)
        assert (metrics["distillations/written"], metrics["buffer/samples"]) == (1, 0)
        assert ray.get(manager.known.remote(entry["record_id"]))

        go.touch()
        assert guard.ask(lambda: manager.drain.remote(20), 60, "the queue")
        report("after", guided_by=entry["record_id"])
        collected: Any = ray.get(manager.collect.remote(3))
        assert collected["extractor/samples"] == 1
        ray.get(manager.close.remote())
    finally:
        ray.shutdown()
