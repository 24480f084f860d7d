"""Processes that Ray calls dead or unavailable, and a vLLM engine that dies alone: Ray is a fake."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from verl_comprl.trainer.stopping import RunInterrupted
from verl_comprl.trainer.trainer import ComplementarySync
from verl_comprl.trainer.watchdog import liveness as module
from verl_comprl.trainer.watchdog import situation
from verl_comprl.trainer.watchdog.liveness import ProcessLost, VitalActors


class EngineDeadError(Exception):
    """vLLM's, which is told by its name."""


class Server:
    """A server's actor as Ray shows it, in whose process calls are made at once."""

    def __init__(self) -> None:
        self.engine = SimpleNamespace(errored=False, dead_error=EngineDeadError("EngineCore died"))
        self.error: Exception | None = None
        self.errors: list[Exception] = []
        """What the next calls meet, before ``error``."""
        self.__dict__["__ray_ready__"] = SimpleNamespace(remote=lambda: Answer(self._met()))
        self.__dict__["__ray_call__"] = SimpleNamespace(remote=self._call)

    def _met(self) -> Exception | None:
        return self.errors.pop(0) if self.errors else self.error

    def _call(self, function: Any) -> "Answer":
        if error := self._met():
            return Answer(error)
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
    monkeypatch.setattr(module, "_PAUSE", 0.0)


KINDS = ("servers", "receivers", "rewards", "engine", "loops")


def watched(**actors: list[Server]) -> VitalActors:
    """What a trainer with these actors looks at."""
    return trainer_of(**actors).vital


def trainer_of(
    *,
    servers: list[Server],
    receivers: list[Server],
    rewards: list[Server],
    engine: list[Server],
    loops: list[Server],
) -> Any:
    """A trainer that looks at these actors."""
    trainer: Any = object.__new__(ComplementarySync)
    apart = SimpleNamespace(servers=[], workers=receivers)
    trainer.standalone_checkpoint_manager = SimpleNamespace(replicas=[apart])
    trainer.checkpoint_manager = SimpleNamespace(replicas=[SimpleNamespace(servers=[each]) for each in servers])
    trainer.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=rewards)
    trainer.actor_rollout_wg = SimpleNamespace(workers=engine)
    trainer.vital = VitalActors()
    trainer.watch_over(SimpleNamespace(agent_loop_workers=loops))
    return trainer


def test_a_dead_engine_is_an_error_that_names_its_server() -> None:
    actors = {name: [Server(), Server()] for name in KINDS}
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
        ("receivers", "worker 1 of the actor's servers"),
    ],
)
def test_a_dead_process_is_an_error_that_names_it(kind: str, name: str) -> None:
    actors = {name: [Server(), Server()] for name in KINDS}
    vital = watched(**actors)
    vital.check()
    victim = actors[kind][1]
    victim.error = ActorDiedError()
    with pytest.raises(ProcessLost, match=f"{name} has died"):
        vital.check()


def test_a_death_that_one_thread_has_found_is_raised_in_all_of_them_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever comes first takes the look; the main thread, which ends the run in order, need not wait for another."""
    actors = {name: [Server(), Server()] for name in KINDS}
    vital = watched(**actors)
    monkeypatch.setattr(module, "LOOK_SECONDS", 3600.0)
    actors["loops"][0].error = ActorDiedError()
    caught: list[ProcessLost] = []

    def look() -> None:
        with pytest.raises(ProcessLost) as lost:
            vital.check()
        caught.append(lost.value)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    look()
    with pytest.raises(ProcessLost):
        vital.blame(RuntimeError("no rollouts"))
    assert [str(lost).startswith("agent loop worker 0 has died") for lost in caught] == [True, True]
    assert caught[0] is not caught[1] and isinstance(caught[1].__cause__, ActorDiedError)
    vital.watch({"other": Server()})
    vital.check()


def test_agent_loops_that_are_ended_are_forgotten_and_the_rest_is_not() -> None:
    actors = {name: [Server(), Server()] for name in KINDS}
    vital = watched(**actors)
    vital.forget(f"agent loop worker {number}" for number in range(2))
    actors["loops"][0].error = ActorDiedError()
    vital.check()
    actors["servers"][0].error = ActorDiedError()
    with pytest.raises(ProcessLost, match="the actor's server 0 has died"):
        vital.check()


def test_agent_loops_that_are_ended_before_a_save_stay_forgotten() -> None:
    """In the order of a stop: one block, the loops are ended in it, and the save is a block of its own in it."""
    actors = {name: [Server(), Server()] for name in KINDS}
    vital = watched(**actors)
    with vital.only(["worker 0 of the actor's engine"]):
        vital.forget(["agent loop worker 0"])
        actors["loops"][0].error = ActorDiedError()
        with vital.only(["worker 0 of the actor's engine"]):
            actors["engine"][1].error = ActorDiedError()
            vital.blame(RuntimeError("not needed for it"))
        vital.check()
    actors["engine"][1].error = None
    vital.check()
    vital.blame(RuntimeError("the disk is full"))
    actors["engine"][1].error = ActorDiedError()
    with pytest.raises(ProcessLost, match="worker 1 of the actor's engine has died"):
        vital.blame(RuntimeError("the disk is full"))


@pytest.mark.parametrize("fails", [OSError(28, "No space left on device"), None])
def test_a_stop_whose_checkpoint_fails_says_why_and_not_that_its_agent_loops_are_dead(
    fails: OSError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    actors = {name: [Server(), Server()] for name in KINDS}
    trainer = trainer_of(**actors)
    trainer.global_steps, trainer._saved_step = 3, 0
    trainer.config = SimpleNamespace(trainer=SimpleNamespace(val_only=False, default_local_dir="run"))
    trainer.experience_runtime = SimpleNamespace(settle_reports=lambda: None)

    def end(**_: Any) -> None:
        for number, loop in enumerate(actors["loops"]):
            trainer.vital.forget([f"agent loop worker {number}"])
            loop.error = ActorDiedError()

    def save(_: Any) -> None:
        if fails:
            raise fails

    monkeypatch.setattr("verl_comprl.trainer.checkpointing.CheckpointingTrainer._save_checkpoint", save)
    monkeypatch.setattr(trainer, "end_episodes", end)
    monkeypatch.setattr(trainer, "record_left_episodes", lambda step: None)
    with pytest.raises(OSError if fails else RunInterrupted) as raised:
        trainer._interrupt()
    trainer.vital.blame(raised.value)  # as `fit` does
    trainer.vital.check()


@pytest.mark.parametrize(("kind", "is_needed"), [("loops", False), ("servers", False), ("engine", True)])
def test_what_a_checkpoint_does_without_ends_the_run_after_it(
    kind: str, is_needed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    actors = {name: [Server(), Server()] for name in KINDS}
    trainer = trainer_of(**actors)
    saved: list[str] = []

    def save(_: Any) -> None:
        actors[kind][0].error = ActorDiedError()
        trainer.vital.check()
        saved.append("all of it")

    monkeypatch.setattr("verl_comprl.trainer.checkpointing.CheckpointingTrainer._save_checkpoint", save)
    if is_needed:
        with pytest.raises(ProcessLost):
            trainer._save_checkpoint()
    else:
        trainer._save_checkpoint()
        assert saved == ["all of it"]
    with pytest.raises(ProcessLost, match="has died"):
        trainer.vital.check()


def test_a_server_that_complains_is_there() -> None:
    server = Server()
    server.engine = SimpleNamespace(errored=True, dead_error=TimeoutError("late"))
    vital = VitalActors()
    vital.watch({}, {"server": server})
    vital.check()


UNAVAILABLE = ActorUnavailableError("a connection has broken", None)


@pytest.mark.parametrize("kind", ["loops", "rewards", "engine", "servers"])
def test_a_process_that_cannot_be_reached_is_asked_again_until_it_answers_or_is_dead(kind: str) -> None:
    actors = {name: [Server(), Server()] for name in KINDS}
    vital, victim = watched(**actors), actors[kind][1]
    victim.errors = [UNAVAILABLE] * 5
    while victim.errors:
        vital.check()
    vital.check()
    victim.error, victim.errors = ActorDiedError(), [UNAVAILABLE]
    vital.check()
    with pytest.raises(ProcessLost, match="has died"):
        vital.check()


@pytest.mark.parametrize("error", [ActorDiedError(), None])
def test_what_fails_is_blamed_on_a_death_though_ray_calls_the_process_unavailable_at_first(error: Any) -> None:
    vital, victim, failure = VitalActors(), Server(), RuntimeError("no rollouts")
    vital.watch({"player": victim, "other": Server()})
    victim.errors, victim.error = [UNAVAILABLE] * 3, error
    if error is None:  # it was away for a moment, which is no death
        vital.blame(failure)
    else:
        with pytest.raises(ProcessLost, match="player has died") as lost:
            vital.blame(failure)
        assert lost.value.__cause__ is failure
    assert victim.errors == []


def test_one_that_stays_unavailable_is_told_by_the_watchdog_and_holds_up_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It counts among those that do not answer, and what has failed is raised as it is, after the time for answers."""
    victim = Server()
    victim.error = UNAVAILABLE
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.2)
    vital = VitalActors()
    vital.watch({"player": victim})
    vital.blame(RuntimeError("no rollouts"))
    monkeypatch.setattr(situation, "ray", module.ray)
    assert situation.ask({"player": Answer(UNAVAILABLE)}) == {"player": "failed: ActorUnavailableError"}
