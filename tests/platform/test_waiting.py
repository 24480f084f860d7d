"""Tests of waiting with a limit, on real threads, locks and Ray actors."""

import ast
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import verl_comprl
from verl_comprl.errors import WaitTimeout
from verl_comprl.platform import waiting
from verl_comprl.platform.waiting import Patience, call_within, holding, interrupted_after, result_within, wait_for


def test_a_call_that_ends_in_time_gives_its_result_or_its_error() -> None:
    assert call_within(lambda: 7, 5, "a number") == 7
    with pytest.raises(KeyError, match="door"):
        call_within(lambda: {}["door"], 5, "a door")

    def impatient() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own") as caught:
        call_within(impatient, 5, "something impatient")
    assert not isinstance(caught.value, WaitTimeout)


def test_a_call_that_hangs_is_left_behind_and_the_error_says_what_and_how_long() -> None:
    gate, started = threading.Event(), time.monotonic()
    with pytest.raises(WaitTimeout, match=r"^waited 0\.05 s for the workers to save$") as caught:
        call_within(gate.wait, 0.05, "the workers to save")
    assert (caught.value.what, caught.value.seconds) == ("the workers to save", 0.05)
    assert time.monotonic() - started < 20
    gate.set()


def test_a_call_that_ends_when_its_time_is_over_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    future = Future[int]()
    monkeypatch.setattr(waiting, "wait", lambda futures, seconds: future.set_result(7))
    assert result_within(future, 1, "a number") == 7


def test_a_reason_to_hurry_shortens_the_wait_for_a_call() -> None:
    with pytest.raises(WaitTimeout, match=r"waited 0\.\d s for a number"):
        result_within(Future[int](), Patience(60.0, hurried=0.1, hurries=lambda: True), "a number")


def test_a_lock_is_waited_for_and_given_back() -> None:
    lock = threading.RLock()
    with pytest.raises(KeyError), holding(lock, 1, "an update"):
        raise KeyError
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    with pytest.raises(WaitTimeout, match="an update"), holding(lock, 0.05, "an update"):
        raise AssertionError("another thread has the lock")
    done.set()
    holder.join()
    with holding(lock, 1, "an update"):
        pass


@pytest.mark.parametrize(("hurries_after", "least"), [(0.0, 0.2), (1.5, 1.7), (2.9, 3.0), (60.0, 3.0)])
def test_a_reason_to_hurry_shortens_a_wait_that_has_begun(hurries_after: float, least: float) -> None:
    started, gate = time.monotonic(), threading.Event()
    patience = Patience(3.0, hurried=0.2, hurries=lambda: time.monotonic() - started > hurries_after)
    assert not patience.is_enough_for(gate.wait)
    assert least <= time.monotonic() - started < least + 20 and patience.waited >= least
    parts: list[float] = []
    assert not patience.is_enough_for(lambda part: bool(parts.append(part)))
    assert parts == [0.0], "its time is over for what comes next, too"
    gate.set()
    assert patience.is_enough_for(gate.wait)


def test_a_lock_is_waited_for_with_patience_too() -> None:
    lock = threading.Lock()
    with holding(lock, Patience(5.0, hurried=5.0, hurries=lambda: False), "an update"):
        hurried = Patience(60.0, hurried=0.2, hurries=lambda: True)
        with pytest.raises(WaitTimeout, match=r"waited 0\.\d s for an update"), holding(lock, hurried, "an update"):
            raise AssertionError("the lock is taken")
    assert not lock.locked()


@pytest.fixture
def interrupts() -> Iterator[list[int]]:
    """Signals that reach the handler of the program."""
    got: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: got.append(number))
    yield got
    signal.signal(signal.SIGINT, before)


def test_a_block_that_ends_at_its_limit_leaves_no_signal_behind(
    interrupts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    late, over = threading.Event(), threading.Event()
    kill, outer = signal.pthread_kill, signal.getsignal(signal.SIGINT)

    @contextmanager
    def block(*_: object, **__: object) -> Iterator[None]:
        yield
        over.set()

    def kill_late(thread: int, number: int) -> None:
        late.set()
        over.wait(30)
        deadline = time.monotonic() + 1
        while signal.getsignal(signal.SIGINT) is not outer and time.monotonic() < deadline:
            time.sleep(0.01)
        kill(thread, number)

    monkeypatch.setattr(waiting, "doing", block)
    monkeypatch.setattr(waiting.signal, "pthread_kill", kill_late)
    with interrupted_after(0.01, "the metrics"):
        assert late.wait(30)
    assert interrupts == [] and signal.getsignal(signal.SIGINT) is outer


def test_a_block_that_takes_too_long_is_left(interrupts: list[int]) -> None:
    with pytest.raises(WaitTimeout, match=r"for the metrics$"), interrupted_after(0.05, "the metrics"):
        time.sleep(30)
    assert interrupts == []


def test_a_signal_while_its_handlers_are_installed_leaves_none_of_them(
    interrupts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers, install, installed = (signal.SIGINT, signal.SIGTERM), signal.signal, list[int]()
    before = [signal.getsignal(number) for number in numbers]

    def install_and_interrupt(number: int, handler: Any) -> Any:
        previous = install(number, handler)
        installed.append(number)
        if len(installed) == 1:
            signal.raise_signal(signal.SIGINT)
        return previous

    monkeypatch.setattr(waiting.signal, "signal", install_and_interrupt)
    with pytest.raises(WaitTimeout, match="for the metrics"), interrupted_after(60, "the metrics"):
        raise AssertionError("the signal came before the block")
    assert [signal.getsignal(number) for number in numbers] == before


Found = dict[str, list[str]]
"""Findings of a scan, by file."""


def scanned(scan: Callable[[str], list[str]]) -> Found:
    """Return what ``scan`` finds in the source of each file of the package that has any."""
    package = Path(verl_comprl.__file__).parent
    found = {path.relative_to(package).as_posix(): scan(path.read_text("utf-8")) for path in package.rglob("*.py")}
    return {file: calls for file, calls in found.items() if calls}


def calls_without_limit(source: str) -> list[str]:
    """Return the calls of Ray's waits in a module that have no time-out."""
    return [
        ast.unparse(call)
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) in ("ray.get", "ray.wait")
        and "timeout" not in [keyword.arg for keyword in call.keywords]
    ]


def test_every_wait_for_ray_has_a_limit() -> None:
    """Those without one are for references that ``ray.wait`` has just found to be ready."""
    assert calls_without_limit("ray.get(a); ray.get(a, timeout=1); ray.wait([a])") == ["ray.get(a)", "ray.wait([a])"]
    assert scanned(calls_without_limit) == {
        "trainer/watchdog/situation.py": ["ray.get(reference)"],
        "trainer/watchdog/liveness.py": ["ray.get(reference)"],
        "trainer/watchdog/counting.py": ["ray.get(answered)"],
        "trainer/late_reports.py": ["ray.get(question)"],
    }


COROUTINES = """
async def wait():
    await actor.ready.remote()
    async with asyncio.timeout(1):
        await actor.ready.remote(1)
        async def later():
            await actor.ready.remote(2)
    async with clock().timeout(1), lock:
        await actor.ready.remote(3)
    async with lock:
        asked = actor.ready.remote(4)
    await asked

def ask():
    return actor.ready.remote(5)
"""


def remote_calls_without_limit(source: str) -> list[str]:
    """Return the calls of Ray actors in a module's coroutines outside of a block that a time-out ends.

    Each call, whether or not it is awaited there: what it returns may be awaited anywhere. Other functions cannot.
    """
    found: list[str] = []

    def look(node: ast.AST, unlimited: bool) -> None:
        if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef):
            unlimited = isinstance(node, ast.AsyncFunctionDef)
        elif isinstance(node, ast.AsyncWith):
            calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
            unlimited = unlimited and not any(ast.unparse(call.func).endswith("timeout") for call in calls)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "remote":
            found.extend([ast.unparse(node)] * unlimited)
        for child in ast.iter_child_nodes(node):
            look(child, unlimited)

    look(ast.parse(source), False)
    return found


def test_every_coroutine_waits_for_an_actor_within_a_limit() -> None:
    assert remote_calls_without_limit(COROUTINES) == [f"actor.ready.remote({number})" for number in ("", "2", "4")]
    assert scanned(remote_calls_without_limit) == {
        # References, which are awaited with a limit of their own each (test_rollout_guidance.py).
        "rollout/guidance.py": [
            "self._manager.guide.remote(text_redactor()(query), task, environment, prompt=prompt, read_only=read_only)",
            "self._manager.search_and_ask.remote(text_redactor()(query), task, environment, read_only=read_only)",
            "self._manager.report.remote(episode)",
        ],
        # Awaited by `_within`.
        "trainer/extractor/server_adapter.py": ["server.__ray_call__.remote(raise_if_dead)"],
        # verl's client awaits it in the place of a handle's call, which has its caller's limit.
        "trainer/servers/cancellation.py": ["self._server.generate.remote(**request)"],
        # Part of a generation of the extractor, whose limit is around all of it (manager/server_calls.py, `bounded`).
        "trainer/servers/failover_client.py": ["self._load_balancer.remove_servers.remote([server])"],
    }


def uses_of_transfer_queue(source: str) -> list[str]:
    """Return the functions of TransferQueue's key-value interface that a module uses, in alphabetical order."""
    nodes, names = list(ast.walk(ast.parse(source))), set()
    found: list[str] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name for alias in node.names if alias.name == "transfer_queue"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "transfer_queue":
            found += [alias.name for alias in node.names if "kv_" in alias.name]
    for node in nodes:
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in names and "kv_" in node.attr:
            found.append(node.attr)
    return sorted(found)


def test_every_use_of_transfer_queue_is_known() -> None:
    """Its client has no limits, so each is a wait that something else has to end (docs/reliability.md)."""
    source = (
        "import transfer_queue as q\nfrom transfer_queue import kv_get, init\nq.kv_clear(1); f(q.async_kv_put); q.close"
    )
    assert uses_of_transfer_queue(source) == ["async_kv_put", "kv_clear", "kv_get"]
    assert scanned(uses_of_transfer_queue) == {
        # In agent loops: their prompts do not end, and the watchdog ends the trainer that waits for rollouts.
        "rollout/failures.py": ["async_kv_put"],
        "rollout/recorder.py": ["async_kv_put"],
        # In the trainer's main thread, in a phase of the watchdog: the start, or the training.
        "trainer/run_folder/failures.py": ["kv_clear"],
        "trainer/step/batch.py": ["kv_batch_get"],
        "trainer/step/groups.py": ["kv_clear"],
        "trainer/weighing.py": ["kv_batch_get", "kv_batch_put", "kv_batch_put"],
        # In the writer's thread, which the end of a run leaves behind (RecordWriter.close).
        "trainer/run_folder/episode_log.py": ["kv_batch_get", "kv_clear"],
        # With a limit (call_within): outside of those phases, or on the way out of one that hangs.
        "trainer/step/keys.py": ["kv_list"],
        "training.py": ["kv_clear"],
    }


@pytest.mark.run
def test_an_actor_that_sleeps_is_waited_for_no_longer_than_the_limit() -> None:
    import ray
    from ray.exceptions import RayTaskError

    class Sleeper:
        def sleep(self, seconds: float) -> str:
            time.sleep(seconds)
            return "awake"

        def fail(self) -> None:
            raise TimeoutError("of the actor")

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        sleeper: Any = ray.remote(Sleeper).remote()
        assert wait_for([sleeper.sleep.remote(0), sleeper.sleep.remote(0)], 60, "two") == ["awake", "awake"]
        with pytest.raises(RayTaskError) as raised:
            wait_for(sleeper.fail.remote(), 60, "a failure")
        assert not isinstance(raised.value, WaitTimeout)
        started = time.monotonic()
        with pytest.raises(WaitTimeout, match=r"waited 0\.2 s for the sleeper"):
            wait_for(sleeper.sleep.remote(30), 0.2, "the sleeper")
        assert time.monotonic() - started < 25
    finally:
        ray.shutdown()
