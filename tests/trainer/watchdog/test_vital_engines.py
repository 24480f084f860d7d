"""The process of a vLLM engine that dies, while its server's actor goes on answering: Ray is a fake."""

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from verl_comprl.trainer.modes import ComplementarySync
from verl_comprl.trainer.watchdog import liveness as module
from verl_comprl.trainer.watchdog.liveness import ProcessLost, VitalActors


class EngineDeadError(Exception):
    """vLLM's, which is told by its name."""


class Server:
    """A server's actor as Ray shows it, in whose process calls are made at once."""

    def __init__(self) -> None:
        self.engine = SimpleNamespace(errored=False, dead_error=EngineDeadError("EngineCore died"))
        self.error: Exception | None = None
        self.__dict__["__ray_ready__"] = SimpleNamespace(remote=lambda: Answer(self.error))
        self.__dict__["__ray_call__"] = SimpleNamespace(remote=self._call)

    def _call(self, function: Any) -> "Answer":
        try:
            return Answer(function(self))
        except Exception as error:
            return Answer(RayTaskError("call", f"its traceback: {error}", error).as_instanceof_cause())


class Answer:
    """What a remote call returns."""

    def __init__(self, result: Any) -> None:
        self.result = result


def get(answer: Answer) -> Any:
    if isinstance(answer.result, Exception):
        raise answer.result
    return answer.result


@pytest.fixture(autouse=True)
def ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ray", SimpleNamespace(get=get, wait=lambda answers, **_: (answers, [])))
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)


def watched(*, servers: list[Server], rewards: list[Server], engine: list[Server], loops: list[Server]) -> VitalActors:
    """What a trainer with these actors looks at."""
    trainer: Any = object.__new__(ComplementarySync)
    trainer.checkpoint_manager = SimpleNamespace(replicas=[SimpleNamespace(servers=[each]) for each in servers])
    trainer.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=rewards)
    trainer.actor_rollout_wg = SimpleNamespace(workers=engine)
    trainer._vital = VitalActors()
    trainer.watch_over(SimpleNamespace(agent_loop_workers=loops))
    return trainer._vital


def test_a_dead_engine_is_an_error_that_names_its_server() -> None:
    actors = {name: [Server(), Server()] for name in ("servers", "rewards", "engine", "loops")}
    vital = watched(**actors)
    vital.check()
    actors["servers"][1].engine.errored = True
    with pytest.raises(ProcessLost, match=r"(?s)the actor's server 1 has died, .*EngineCore died"):
        vital.check()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("loops", "agent loop worker 1"),
        ("rewards", "reward worker 1"),
        ("engine", "worker 1 of the actor's engine"),
        ("servers", "the actor's server 1"),
    ],
)
def test_a_dead_process_is_an_error_that_names_it(kind: str, name: str) -> None:
    actors = {name: [Server(), Server()] for name in ("servers", "rewards", "engine", "loops")}
    vital = watched(**actors)
    vital.check()
    victim = actors[kind][1]
    victim.error = victim.engine.dead_error = ActorDiedError()
    victim.engine.errored = True
    with pytest.raises(ProcessLost, match=f"{name} has died"):
        vital.check()


def test_a_server_that_complains_is_there() -> None:
    server = Server()
    server.engine = SimpleNamespace(errored=True, dead_error=TimeoutError("late"))
    vital = VitalActors()
    vital.watch({}, {"server": server})
    vital.check()
