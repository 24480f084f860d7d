"""Orders to the actor's servers and workers that hang: each of ours has a limit."""

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import zmq
from omegaconf import OmegaConf
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync

from verl_comprl.errors import WaitTimeout
from verl_comprl.platform import waiting
from verl_comprl.trainer import engine_sharing, engine_worker
from verl_comprl.trainer.engine_worker import EngineWorker
from verl_comprl.trainer.servers import limited_transfers
from verl_comprl.trainer.servers.limited_transfers import LimitedTransfers
from verl_comprl.trainer.trainer import ComplementarySeparateAsync, ComplementarySync


@pytest.fixture
def hang() -> Iterator[Callable[..., None]]:
    end = threading.Event()

    def hang(*_: Any, **__: Any) -> None:
        end.wait(60)

    yield hang
    end.set()


@pytest.fixture
def trainer(hang: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run on engines of another one, with the actor as the extractor, whose servers hang."""
    trainer: Any = object.__new__(ComplementarySync)
    settings = SimpleNamespace(backend="actor")
    trainer.comprl = SimpleNamespace(experience=True, extractor=settings, work_timeout=0.1)
    trainer.config = OmegaConf.create({"actor_rollout_ref": {}})
    names = ("abort_replicas", "sleep_replicas", "resume_generation_replicas")
    trainer.checkpoint_manager = SimpleNamespace(replicas=[], **dict.fromkeys(names, hang))
    trainer.actor_rollout_wg = SimpleNamespace(restart=hang, free_cached_memory=hang)
    trainer.engines, trainer.llm_server_manager = SimpleNamespace(has_actor=True, lend_actor=lambda _: None), None
    trainer.stop, trainer._took_over = SimpleNamespace(made=False), True
    trainer._saved_step = trainer.global_steps = 1
    trainer._init_tokenizer = trainer._init_dataloader = trainer._init_dump_executor = dict
    for kind in ComplementarySync.__mro__[1:]:  # what verl does at these places
        if issubclass(kind, PPOTrainer) and kind.__module__.startswith("verl."):
            for name in {"on_init_end", "on_sample_end", "on_step_end"} & vars(kind).keys():
                monkeypatch.setattr(kind, name, lambda self: None)

    def call_within(call: Callable[[], Any], seconds: float, what: str) -> Any:
        return waiting.call_within(call, 60 if call is dict else seconds, what)

    monkeypatch.setattr(engine_sharing, "SERVER_SECONDS", 0.1)
    monkeypatch.setattr(engine_sharing, "call_within", call_within)
    monkeypatch.setattr(engine_sharing, "comprl_config", lambda _: trainer.comprl)
    monkeypatch.setattr(engine_sharing, "forget_requests", lambda *_: None)
    return trainer


def limited(call: Callable[[], Any], what: str) -> None:
    started = time.monotonic()
    with pytest.raises(WaitTimeout, match=what):
        call()
    assert time.monotonic() - started < 30


def test_servers_that_answer_the_extractor_pause_and_go_on_within_a_limit(trainer: Any) -> None:
    limited(trainer.on_sample_end, "abort_replicas")
    limited(trainer.on_step_end, "resume_generation_replicas")


def test_a_run_takes_engines_over_within_a_limit(trainer: Any) -> None:
    setup = engine_sharing.EngineSharing._setup
    limited(lambda: setup(trainer), "abort_replicas")
    trainer.checkpoint_manager.abort_replicas = dict
    limited(lambda: setup(trainer), "sleep_replicas")
    trainer.checkpoint_manager.sleep_replicas = dict
    limited(lambda: setup(trainer), "the actor's workers to begin another run")
    limited(lambda: engine_sharing.EngineSharing.on_init_end(trainer), "resume_generation_replicas")


def test_memory_for_the_extractors_turn_is_given_back_within_a_limit(trainer: Any) -> None:
    limited(trainer.free_memory, "the actor's workers to give back memory")


def test_a_transfer_of_the_actors_weights_has_a_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server may die meanwhile; ``test_weight_transfer`` shows verl's sender give up."""
    monkeypatch.setattr(DetachActorWorker, "init_model", lambda self: None)
    monkeypatch.setattr(engine_worker, "meeting_group", lambda: None)
    context = zmq.Context.instance()
    monkeypatch.setattr(context, "sockopts", {})
    worker: Any = object.__new__(EngineWorker)
    worker.actor = None  # as of a process with a server alone
    worker.init_model()
    with context.socket(zmq.REQ) as socket:
        assert socket.getsockopt(zmq.RCVTIMEO) == socket.getsockopt(zmq.SNDTIMEO) == 300_000


def test_so_has_one_to_servers_with_slots_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their weights are handed over by processes of verl, of which there is one per slot."""

    class Worker:
        def __init__(self) -> None:
            self.limits: dict[int, int] = {}
            self.__dict__["__ray_call__"] = SimpleNamespace(remote=self._call)

        def _call(self, function: Callable[..., Any], *arguments: Any) -> None:
            with monkeypatch.context() as patch:  # as in the process of this worker
                patch.setattr(context, "sockopts", self.limits)
                function(self, *arguments)

    context = zmq.Context.instance()
    trainer: Any = object.__new__(ComplementarySeparateAsync)
    workers = [Worker() for _ in range(3)]
    started: list[str] = []

    def start(self: Any) -> None:
        started.append("servers")
        replicas = [SimpleNamespace(workers=workers[:2]), SimpleNamespace(workers=workers[2:])]
        self.standalone_checkpoint_manager = SimpleNamespace(replicas=replicas)

    monkeypatch.setattr(PPOTrainerSeparateAsync, "_setup", start)
    monkeypatch.setattr(limited_transfers, "wait_for", lambda done, seconds, what: None)
    LimitedTransfers._setup(trainer)
    assert started == ["servers"]
    assert [each.limits for each in workers] == [{zmq.SNDTIMEO: 300_000, zmq.RCVTIMEO: 300_000}] * 3


def test_the_weights_that_are_set_aside_do_not_change_with_the_next_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """π_old of ``separate_async``: on a CPU verl sets aside the weights themselves."""
    monkeypatch.setattr(DetachActorWorker, "copy_handler", property(lambda self: lambda module: module.state_dict()))
    worker: Any = object.__new__(EngineWorker)
    model = torch.nn.Linear(1, 1, bias=False)
    aside = worker.copy_handler(model)
    before = aside["weight"].clone()
    with torch.no_grad():
        model.weight += 1
    assert torch.equal(aside["weight"], before)
