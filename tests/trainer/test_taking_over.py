"""A run of a sweep that takes over the engines of the one before: the order of what is told to them."""

from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from verl_comprl.trainer import engine_sharing
from verl_comprl.trainer.engine_sharing import EngineSharing
from verl_comprl.trainer.extractor import runtime as extractor_runtime
from verl_comprl.trainer.extractor.runtime import ExtractorRuntime
from verl_comprl.trainer.servers.serving import Serving

LIMITS = SimpleNamespace(work_timeout=5.0, update_timeout=5.0)


class Events(list[str]):
    """What is called, in order, whatever the method."""

    replicas = ("server",)

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.append(name)


def test_the_actors_servers_forget_requests_of_killed_agent_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    events = Events()
    kind: Any = type("Shared", (EngineSharing,), {"on_step_end": None, "on_sample_end": None})
    trainer = object.__new__(kind)
    for name in ("_init_tokenizer", "_init_dataloader", "_init_dump_executor", "_load_checkpoint"):
        monkeypatch.setattr(PPOTrainer, name, lambda self: None)
    trainer.engines = SimpleNamespace(has_actor=True, lend_actor=lambda _: None)
    trainer.config = OmegaConf.create({"actor_rollout_ref": {}})
    monkeypatch.setattr(engine_sharing, "comprl_config", lambda _: LIMITS)
    trainer.checkpoint_manager = trainer.actor_rollout_wg = events
    trainer.llm_server_manager = "servers"
    monkeypatch.setattr(engine_sharing, "forget_requests", lambda *given: events.append(f"forget {given}"))
    trainer._setup()
    assert events == ["abort_replicas", "sleep_replicas", "forget ('servers', ('server',))", "restart"]


def test_the_extractors_servers_forget_requests_of_a_killed_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    events = Events()
    runtime: Any = object.__new__(ExtractorRuntime)
    runtime.serving = Serving(SimpleNamespace(replicas=[]), shares_memory=False)
    runtime.serving.pause = lambda: events.append("pause")
    runtime.servers, runtime.workers, runtime.weight_version, runtime._updating = SimpleNamespace(), events, 7, None
    runtime._set_cpu_priority = lambda: events.append("priority")
    monkeypatch.setattr(extractor_runtime, "comprl_config", lambda _: LIMITS)
    monkeypatch.setattr(extractor_runtime, "forget_requests", lambda *_: events.append("forget"))
    runtime.restart(OmegaConf.create({"actor_rollout_ref": {}}))
    assert events == ["pause", "forget", "restart", "priority"] and runtime.weight_version == 0
