"""The extractor's servers around a change of weights: verl's manager of them is a fake that can fail at each call."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayActorError

from verl_comprl.errors import WaitTimeout
from verl_comprl.platform import waiting
from verl_comprl.trainer.servers import serving as module
from verl_comprl.trainer.servers.serving import Serving, State

PAUSE, RESTORE = ["away", "abort", "sleep"], ["sync 3", "resume", "back"]


class Replica:
    """A server on two nodes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.servers = [SimpleNamespace(**{"__ray_call__": SimpleNamespace(remote=lambda _: name)})] * 2


class Servers:
    """Writes down what it is told; raises ``failing[name]``, and hangs in ``hanging``."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.failing: dict[str, Exception] = {}
        self.hanging = ""
        self.dead: set[str] = set()
        self.backend = "naive"
        self.replicas = [Replica("a")]

    def remove_replicas(self, replicas: list[Any]) -> None:
        self.replicas = [replica for replica in self.replicas if replica not in replicas]

    def note(self, name: str, detail: str = "") -> None:
        self.events.append(f"{name} {detail}".strip())
        if name == self.hanging:
            threading.Event().wait(40)
        if name in self.failing:
            raise self.failing[name]

    def abort_replicas(self) -> None:
        self.note("abort")

    def sleep_replicas(self) -> None:
        self.note("sleep")

    def resume_generation_replicas(self) -> None:
        self.note("resume")

    def update_weights(self, version: int) -> None:
        self.note("sync", str(version))


Make = Callable[[bool], Serving]


@pytest.fixture
def servers() -> Servers:
    return Servers()


@pytest.fixture
def make(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Make a service that serves already, of servers that share memory with the engine or not."""

    def wait_for(names: list[str], *_: Any) -> None:
        if "alive" in servers.failing:
            raise servers.failing["alive"]
        if servers.dead & set(names):
            raise ActorDiedError

    monkeypatch.setattr(module, "wait_for", wait_for)
    monkeypatch.setattr(module, "ray", SimpleNamespace(kill=lambda server: None))

    def make(shares_memory: bool) -> Serving:
        serving = Serving(servers, shares_memory=shares_memory)
        serving.publish(0, 5)
        assert servers.events == ["sync 0", "resume"]  # nothing can be running before, so nothing is aborted
        servers.events.clear()
        serving.tell = lambda there: servers.note("back" if there else "away")
        return serving

    return make


def train(serving: Serving, servers: Servers, error: Exception | None = None, *, is_late: bool = False) -> None:
    with serving.changing_weights(lambda: 3, lambda: is_late, seconds=5):
        servers.note("train")
        if error:
            raise error


def test_servers_that_share_memory_are_away_for_the_whole_update(make: Make, servers: Servers) -> None:
    serving = make(True)
    train(serving, servers)
    assert servers.events == [*PAUSE, "train", *RESTORE] and serving.state is State.SERVING


def test_servers_with_memory_of_their_own_are_never_away(make: Make, servers: Servers) -> None:
    serving = make(False)
    train(serving, servers)
    assert servers.events == ["train", "abort", "sync 3", "resume"] and serving.state is State.SERVING


def test_they_serve_again_after_an_update_that_failed(make: Make, servers: Servers) -> None:
    serving = make(True)
    with pytest.raises(MemoryError):
        train(serving, servers, MemoryError())
    assert servers.events == [*PAUSE, "train", *RESTORE] and serving.state is State.SERVING


@pytest.mark.parametrize("shares_memory", [True, False])
def test_they_wait_for_no_engine_that_still_changes_its_weights(
    make: Make, servers: Servers, shares_memory: bool
) -> None:
    serving = make(shares_memory)
    with pytest.raises(WaitTimeout):
        train(serving, servers, WaitTimeout("the update", 5), is_late=True)
    assert servers.events == ([*PAUSE, "train"] if shares_memory else ["train"])
    assert serving.state is (State.DOWN if shares_memory else State.SERVING)
    serving.publish(3, 5)
    assert servers.events[-2:] == (["resume", "back"] if shares_memory else ["sync 3", "resume"])


def test_they_are_left_alone_if_they_never_paused(make: Make, servers: Servers) -> None:
    serving = make(False)
    with pytest.raises(MemoryError):
        train(serving, servers, MemoryError())
    assert servers.events == ["train"] and serving.state is State.SERVING


@pytest.mark.parametrize("shares_memory", [True, False])
@pytest.mark.parametrize("call", ["sync", "resume"])
def test_servers_that_cannot_be_restored_are_down_until_an_attempt_succeeds(
    make: Make, servers: Servers, shares_memory: bool, call: str
) -> None:
    serving = make(shares_memory)
    servers.failing = {call: RuntimeError("refused")}
    for _ in range(2):
        with pytest.raises(RuntimeError, match="refused"):
            train(serving, servers)
        assert serving.state is State.DOWN
    servers.failing.clear()
    assert servers.events.count("away") == 1 and "back" not in servers.events
    servers.events.clear()
    serving.publish(4, 5)
    assert servers.events[-3:] == ["sync 4", "resume", "back"] and serving.state is State.SERVING
    # Weights may have been replaced in part: nothing may be generated with them before the next sync.
    assert ("abort" in servers.events) == (call == "resume")


@pytest.mark.parametrize("shares_memory", [True, False])
def test_weights_are_never_sent_to_a_server_that_has_died(make: Make, servers: Servers, shares_memory: bool) -> None:
    serving = make(shares_memory)
    servers.failing = {"alive": ActorDiedError(), "abort": ActorDiedError()}
    with pytest.raises(ActorDiedError):
        train(serving, servers)
    assert serving.state is State.DOWN and "sync 3" not in servers.events and "away" in servers.events
    assert ("train" in servers.events) == (not shares_memory)


@pytest.mark.parametrize("shares_memory", [True, False])
def test_one_of_several_servers_that_has_died_is_left_out_and_the_others_serve(
    make: Make, servers: Servers, shares_memory: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    servers.replicas = [Replica(name) for name in "abc"]
    serving = make(shares_memory)
    servers.dead = {"b"}
    for _ in range(2):
        train(serving, servers)
    assert [replica.name for replica in serving.replicas] == ["a", "c"]
    assert serving.state is State.SERVING and serving.lost == 1 and servers.events.count("sync 3") == 2
    assert capsys.readouterr().out == "1 of the extractor's 3 servers have died; the others continue\n"
    servers.dead = {"a", "c"}
    with pytest.raises(ActorDiedError):
        train(serving, servers)
    assert serving.state is State.DOWN and servers.events.count("sync 3") == 2 and servers.events.count("away")


def test_a_server_that_nothing_can_give_new_weights_any_more_is_ended(
    make: Make, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a device of its own, it takes them from a process that Ray may kill when memory is short."""
    killed: list[Any] = []
    monkeypatch.setattr(module, "ray", SimpleNamespace(kill=killed.append))
    servers.replicas, servers.backend = [Replica(name) for name in "ab"], "nccl"
    for replica in servers.replicas:
        call = SimpleNamespace(remote=lambda _, name=replica.name: f"{name} receives")
        receiver = SimpleNamespace(**{"__ray_call__": call})
        replica.__dict__["workers"] = [receiver]
    serving = make(False)
    servers.dead = {"b receives"}
    train(serving, servers)
    assert [replica.name for replica in serving.replicas] == ["a"] and len(killed) == 2
    assert serving.state is State.SERVING and serving.lost == 1
    servers.dead = {"a receives"}  # the last one: nothing is left that could be trained for
    with pytest.raises(ActorDiedError):
        train(serving, servers)
    assert serving.state is State.DOWN


def test_a_server_that_hangs_when_it_is_asked_is_not_taken_for_dead(make: Make, servers: Servers) -> None:
    servers.replicas = [Replica("a"), Replica("b")]
    serving = make(False)
    servers.failing = {"alive": WaitTimeout("the servers", 1)}
    with pytest.raises(WaitTimeout):
        train(serving, servers)
    assert len(serving.replicas) == 2 and serving.lost == 0 and serving.state is State.DOWN


def test_a_server_that_hangs_is_an_error_and_is_restored(
    make: Make, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call_within(call: Callable[[], Any], seconds: float, what: str) -> Any:
        return waiting.call_within(call, seconds if "sleep" in what else 30, what)

    monkeypatch.setattr(module, "SERVER_SECONDS", 0.05)
    monkeypatch.setattr(module, "call_within", call_within)
    serving = make(True)
    servers.hanging = "sleep"
    with pytest.raises(WaitTimeout, match=r"waited 0\.05 s for the extractor's servers \(sleep_replicas\)"):
        train(serving, servers)
    assert servers.events == [*PAUSE, *RESTORE] and serving.state is State.SERVING


def test_verls_manager_of_servers_gets_the_calls(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its methods are coroutines unless they are called outside of an event loop, as here, in a thread."""
    from verl.checkpoint_engine import CheckpointEngineManager

    class Asked:
        servers = ()

        async def abort_all_requests(self, reject_request: bool) -> None:
            servers.note("abort", str(reject_request))

        async def sleep(self) -> None:
            servers.note("sleep")

        async def resume_generation(self) -> None:
            servers.note("resume")

    control: Any = object.__new__(CheckpointEngineManager)
    control.replicas, control.backend = [Asked()], "naive"
    control.actor_wg = SimpleNamespace(
        update_weights=lambda global_steps, mode: servers.note("sync", str(global_steps))
    )
    monkeypatch.setattr("verl.checkpoint_engine.base.ray.get", lambda reference: reference)
    monkeypatch.setattr(module, "wait_for", lambda *_: None)
    serving = Serving(control, shares_memory=True)
    train(serving, servers)
    assert servers.events == ["abort False", "sleep", "train", "sync 3", "resume"]


def test_a_manager_that_begins_again_is_told_that_the_extractor_is_away(make: Make, servers: Servers) -> None:
    serving = make(True)
    serving.tell_again()
    assert servers.events == []
    serving.pause()
    servers.events.clear()
    serving.tell_again()
    assert servers.events == ["away"]


def test_what_is_told_last_is_the_state_although_two_threads_tell(make: Make, servers: Servers) -> None:
    serving = make(True)
    serving.pause()
    servers.events.clear()
    telling, goes_on = threading.Event(), threading.Event()

    def tell(there: bool) -> None:
        if not there:  # the guard's thread has seen that the extractor is away, and takes its time
            telling.set()
            goes_on.wait(20)
        servers.note("back" if there else "away")

    serving.tell = tell
    guard = threading.Thread(target=serving.tell_again)
    learner = threading.Thread(target=lambda: serving.publish(3, 20))
    guard.start()
    assert telling.wait(20)
    learner.start()
    learner.join(0.3)
    goes_on.set()
    for thread in (guard, learner):
        thread.join(20)
    told = [event for event in servers.events if event in ("away", "back")]
    assert told == ["away", "back"] and serving.state is State.SERVING


def test_all_leave_the_group_of_a_transfer_that_failed_before_the_next_one(
    make: Make, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NCCL asks for; verl lets them leave only after a transfer that succeeded."""

    class Worker:
        def __init__(self, name: str) -> None:
            self.execute_checkpoint_engine = SimpleNamespace(remote=lambda method: f"{method} {name}")
            self.__dict__["__ray_call__"] = SimpleNamespace(remote=lambda _: name)

    def leave(methods: list[str]) -> list[str]:
        return [f"{method} engine{rank}" for rank, method in enumerate(methods)]

    def wait_for(left: Any, *_: Any) -> None:
        if isinstance(left, str):  # not the question whether servers are there
            servers.note(left)

    serving = make(False)
    monkeypatch.setattr(module, "wait_for", wait_for)
    servers.backend = "nccl"
    engine: Any = SimpleNamespace(world_size=2, execute_checkpoint_engine=leave)
    servers.__dict__["actor_wg"] = engine
    for replica in servers.replicas:
        replica.__dict__["workers"] = [Worker("receiver")]
    everyone = ["finalize engine0", "finalize engine1", "finalize receiver"]
    servers.failing = {"sync": RuntimeError("NCCL"), "finalize engine1": RayActorError()}
    for before in ([], everyone):
        servers.events.clear()
        with pytest.raises(RuntimeError, match="NCCL"):
            serving.publish(3, 5)
        assert [event for event in servers.events if event.startswith("finalize")] == before
    servers.events.clear()
    del servers.failing["sync"]
    serving.publish(4, 5)
    assert servers.events == [*everyone, "sync 4", "resume", "back"]
    servers.events.clear()
    serving.publish(5, 5)
    assert servers.events == ["abort", "sync 5", "resume"]
    servers.failing = {"sync": RuntimeError("NCCL"), "finalize receiver": WaitTimeout("it to leave", 1)}
    with pytest.raises(RuntimeError, match="NCCL"):
        serving.publish(6, 5)
    with pytest.raises(WaitTimeout, match="it to leave"):
        serving.publish(7, 5)
    assert serving.state is State.DOWN


@pytest.mark.parametrize("fails", [False, True])
def test_a_transfer_begins_when_a_late_one_has_ended(make: Make, servers: Servers, fails: bool) -> None:
    serving = make(False)
    running, at_a_time, end = 0, 0, threading.Event()

    def update_weights(version: int) -> None:
        nonlocal running, at_a_time
        running += 1
        at_a_time = max(at_a_time, running)
        end.wait(40)
        running -= 1
        servers.note("sync", str(version))
        if fails and version == 3:
            raise RuntimeError("torn")

    servers.update_weights = update_weights
    for waited in ("the extractor's weights to reach its servers", "an earlier transfer"):
        with pytest.raises(WaitTimeout, match=waited):
            serving.publish(3, 0.05)
        assert serving.state is State.DOWN
    end.set()
    serving.publish(4, 20)
    assert [event for event in servers.events if event.startswith("sync")] == ["sync 3", "sync 4"]
    assert at_a_time == 1 and serving.state is State.SERVING and serving.version == 4
