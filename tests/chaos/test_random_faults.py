"""A real run in which one part after the other breaks at random; it ends well, and its books agree.

``COMPRL_FAULTS=50 pytest tests/chaos/test_random_faults.py`` breaks at least 50 things for up to 30 seconds each, in
about an hour. Without that one or two kinds for each part of a run happen once, for up to five.
"""

import json
import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from books import problems
from embedding_endpoint import EmbeddingEndpoint
from faults import kill, manager, playing, stopped
from moody import MOODS
from qdrant_double import QdrantDouble
from running import Run, last_step, read_steps, undocumented
from starlette.responses import Response

from verl_comprl.rollout.guidance import FIRST_SECONDS

FAULTS = int(os.environ.get("COMPRL_FAULTS", "0"))
LONGEST = 30.0 if FAULTS else 5.0
"""Seconds that a fault lasts at most, unless it has to last longer to be one."""
STEP_TIMEOUT = 5
LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
SHORT = (
    "environment killed",
    "environment babbling",
    "manager killed",
    "extractor's server hung",
    "store emptied",
    "embedder away",
)
"""Kinds of fault for which CI has time."""
OF_A_STEP = (
    "rollouts/failed/environment",
    "degraded",
    "unreported",
    *(f"{half}/cut_off" for half in ("guided", "free")),
)
"""Metrics of one step; others grow over the run."""
AWAY = "bank/degraded|bank/away_seconds"
FAILS = r"bank/degraded|failures/(distill|merge|list_nearest):.*|queue/retried"
DISTILLATIONS = {f"comprl/distillations/{result}" for result in ("written", "return", "unreadable")}
COUNTED: dict[str, str] = {
    **{f"environment {how}": OF_A_STEP[0] for how in ("killed", "hung", "raising", "not a number", "infinite")},
    "environment babbling": ".*/cut_off",
    "manager killed": "manager_restarts",
    "manager hung": "degraded|unreported|collect_timeouts",
    "store away": AWAY,
    "store away for a minute": AWAY,
    "store away, manager killed": "manager_restarts",
    "store emptied": "bank/rebuilds",
    "store slow": AWAY,
    "store refusing": AWAY,
    "embedder away": AWAY,
    "embedder refusing": FAILS,
    "embedder not a number": FAILS,
}
"""Metrics of which one must rise in a fault."""

pytestmark = [pytest.mark.run, pytest.mark.timeout(120 * FAULTS + 1500)]

Fault = Callable[[], AbstractContextManager[None]]


class World:
    """A run with all that it depends on, and the ways to break them."""

    def __init__(
        self, run: Run, steps: Callable[[], list[str]], mood: Path, store: QdrantDouble, embedder: EmbeddingEndpoint
    ) -> None:
        self._run, self._steps, self._mood = run, steps, mood
        self._store, self._embedder = store, embedder
        self.kinds: dict[str, Fault] = {
            "environment killed": lambda: self._until_failed("environment killed", lambda: self._dead(playing)),
            "environment hung": lambda: self._until_failed(
                "environment hung", lambda: self._hung(playing, STEP_TIMEOUT + 3)
            ),
            **{f"environment {mood}": partial(self._moody, mood) for mood in MOODS},
            "manager killed": lambda: self._dead(manager),
            "manager hung": lambda: self._hung(manager, FIRST_SECONDS + 5),
            "extractor's server hung": self._mute,
            "store away": lambda: self._away(store),
            "store away, manager killed": self._away_and_dead,
            "store emptied": self._emptied,
            "store slow": self._slow,
            "store refusing": self._refusing,
            "embedder away": self._deaf,
            "embedder refusing": self._wrong,
            "embedder not a number": self._not_a_number,
        }
        if FAULTS:
            self.kinds["store away for a minute"] = lambda: self._away(store, 60)

    def was_counted(self, kind: str, since: int) -> bool:
        """Whether a fault shows in the metrics of the steps after ``since``, or need not."""
        return kind not in COUNTED or was_counted([*map(json.loads, self._steps())], kind, since)

    def _one(self, find: Callable[[Run], list[Any]]) -> list[Any]:
        found: list[Any] = []
        self._run.wait_until(lambda: found.extend(find(self._run)[:1]) or found)
        return found

    def _finished(self) -> int:
        return len(self._steps())

    def _server(self, name: str) -> int:
        return json.loads(self._run.probe.read_text())[name]

    @contextmanager
    def _dead(self, find: Callable[[Run], list[Any]]) -> Iterator[None]:
        kill(self._one(find))
        yield

    @contextmanager
    def _hung(self, find: Callable[[Run], list[Any]], seconds: float) -> Iterator[None]:
        """Longer than what waits for it does."""
        with stopped(self._one(find)):
            time.sleep(seconds)
            yield

    @contextmanager
    def _until_failed(self, kind: str, fault: Fault) -> Iterator[None]:
        """Again if no rollout has failed: an episode may have ended just before, or the next be at its reset."""
        begun = self._finished()
        for _ in range(5):
            if not self.was_counted(kind, begun):
                with self._whole_step(), fault():
                    pass
        yield

    @contextmanager
    def _moody(self, mood: str) -> Iterator[None]:
        """Until it was counted: few episodes are moody, in a step perhaps none."""
        begun = self._finished()
        with self._whole_step():
            self._mood.write_text(mood)
            yield
        self._run.wait_until(lambda: self.was_counted(f"environment {mood}", begun))
        self._mood.write_text("")

    @contextmanager
    def _mute(self) -> Iterator[None]:
        """Steps end while it hangs, and nothing is distilled; afterwards that goes on."""
        with stopped([psutil.Process(self._server("the extractor's server 0"))]):
            begun = self._finished()
            with self._whole_step():
                yield
            # Not from the first line on: what had been answered before may be written to the bank after its count.
            self._run.wait_until(lambda: self._finished() > begun + 2)
            before, during = (distilled(line) for line in self._steps()[begun + 1 : begun + 3])
            assert before == during
        self._run.wait_until(lambda: distilled(self._steps()[-1]) > during)

    @contextmanager
    def _away(self, server: Any, seconds: float = 0.0) -> Iterator[None]:
        with self._whole_step():
            server.stop()
            time.sleep(seconds)
            yield
        server.start()

    @contextmanager
    def _away_and_dead(self) -> Iterator[None]:
        with self._away(self._store), self._dead(manager):
            yield

    @contextmanager
    def _emptied(self) -> Iterator[None]:
        """A server that comes back without its storage."""
        self._store.stop()
        self._store.empty()
        self._store.start()
        yield

    @contextmanager
    def _whole_step(self) -> Iterator[None]:
        """Let what is broken inside meet all rollouts of a step."""
        begun = self._finished()
        yield
        self._run.wait_until(lambda: self._finished() > begun + 1)

    @contextmanager
    def _slow(self) -> Iterator[None]:
        """Slower than ``bank.timeout_seconds`` allows."""
        with self._whole_step():
            self._store.faults.delay = 8.0
            yield
        self._store.faults.delay = 0.0

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        with self._whole_step():
            self._store.faults.responses = [(503, {})] * 20
            yield

    @contextmanager
    def _deaf(self) -> Iterator[None]:
        with self._until_embedded("embedder away"):
            self._embedder.server.stop()
            yield
        self._embedder.server.start()

    @contextmanager
    def _wrong(self) -> Iterator[None]:
        with self._until_embedded("embedder refusing"):
            self._embedder.failures = [Response("no", 500)] * 1000
            yield
        self._embedder.failures = []

    @contextmanager
    def _not_a_number(self) -> Iterator[None]:
        with self._until_embedded("embedder not a number"):
            self._embedder.factor = float("nan")
            yield
        self._embedder.factor = 1.0

    @contextmanager
    def _until_embedded(self, kind: str) -> Iterator[None]:
        """Until it was counted: vectors of queries are kept, so that after a while only new entries ask an embedder."""
        begun = self._finished()
        with self._whole_step():
            yield
        self._run.wait_until(lambda: self.was_counted(kind, begun))


def in_order(kinds: list[str], chance: random.Random) -> Iterator[str]:
    """Yield kinds of fault until there are ``FAULTS``, at least all of them, and all before one comes again."""
    for _ in range(0, FAULTS or len(kinds), len(kinds)):
        yield from chance.sample(kinds, len(kinds))


def distilled(line: str) -> float:
    """Return how many episodes had been distilled when a line of ``metrics.jsonl`` was written."""
    data = json.loads(line)["data"]
    return sum(value for name, value in data.items() if name in DISTILLATIONS)


def was_counted(steps: list[dict[str, Any]], kind: str, since: int) -> bool:
    """Whether a fault shows in the metrics of the steps after ``since``, which are lines of ``metrics.jsonl``."""
    wanted = re.compile(f"comprl/({COUNTED[kind]})")
    for line in steps[since:]:
        for name, value in line["data"].items():
            if wanted.fullmatch(name) and value is not None:
                grows = since and name.removeprefix("comprl/") not in OF_A_STEP
                before = steps[since - 1]["data"].get(name, 0.0) if grows else 0.0
                if value > before:
                    return True
    return False


def check_refused(run: Run, reason: str) -> None:
    """Check that a run does not start, says so in one line, and leaves nothing."""
    try:
        assert run.process.wait(timeout=300) == 2, run.text()
    finally:
        run.process.kill()
    assert [line for line in run.text().splitlines() if line.startswith("error:") and reason in line], run.text()
    assert "Traceback" not in run.text()
    assert run.leftovers() == []


@pytest.fixture(scope="module")
def store() -> Iterator[QdrantDouble]:
    double = QdrantDouble().start()
    yield double
    double.close()


@pytest.fixture(scope="module")
def embedder() -> Iterator[EmbeddingEndpoint]:
    endpoint = EmbeddingEndpoint()
    endpoint.server.start()
    yield endpoint
    endpoint.server.stop()


def test_a_run_survives_whatever_breaks_and_its_books_agree(
    folder: Path, mood: Path, store: QdrantDouble, embedder: EmbeddingEndpoint
) -> None:
    chance = random.Random(FAULTS)
    overrides = (
        "trainer.total_training_steps=10000",
        "comprl.environments.isolation=process",
        f"comprl.environments.step_timeout={STEP_TIMEOUT}",
        "comprl.environments.reset_timeout=40",
        f"comprl.bank.url={store.url}",
        f"comprl.embedder.url={embedder.url}",
        "comprl.embedder.model=fake",
        "comprl.queue.capacity=4",  # full again and again: the others wait on disk only
        "comprl.warmup_steps=0",
        # Faults are its subject: an extractor that has unlearned its form writes nothing that a fault could keep away.
        "extractor.actor.optim.lr=1e-6",
    )
    store.stop()
    check_refused(Run(folder, *overrides), f"on {store.url}: ConnectError")
    store.start()
    run = Run(folder, *overrides, script="named_run.py")
    metrics = folder / "run/metrics.jsonl"

    def steps() -> list[str]:
        return metrics.read_text().split("\n")[:-1] if metrics.exists() else []  # the last may not have its end yet

    def finished() -> int:
        return len(steps())

    world, made = World(run, steps, mood, store, embedder), list[str]()
    try:
        run.wait_until(lambda: finished() >= 1)
        for kind in in_order([*world.kinds] if FAULTS else [*SHORT], chance):
            time.sleep(chance.uniform(0, LONGEST / 3))
            step = finished()
            with world.kinds[kind]():
                time.sleep(chance.uniform(1, LONGEST))
            over = finished()
            made.append(kind)
            print(f"{kind} in steps {step + 1} to {over + 1}", flush=True)
            run.wait_until(lambda kind=kind, step=step, over=over: finished() > over and world.was_counted(kind, step))
        listening = run.listening()
        run.process.send_signal(signal.SIGTERM)
        code = run.process.wait(timeout=600)
    finally:
        run.process.kill()
    assert code == 130, run.text()
    assert run.leftovers() == []
    elsewhere = {name for name, addresses in listening.items() if addresses - LOOPBACK}
    assert elsewhere <= {"ray::WorkerDict"}, "only torch's process groups listen on all addresses (docs/security.md)"
    assert sum(bool(addresses) for addresses in listening.values()) > 3
    measured = read_steps(folder / "run")
    assert [step["step"] for step in measured] == list(range(1, last_step(folder / "run") + 1))
    assert len(measured) > len(made)
    assert {step["comprl/rollouts/failed/server"] for step in measured} == {0}
    assert measured[-1]["comprl/manager_restarts"] == sum("manager killed" in kind for kind in made)
    assert undocumented({name for step in measured for name in step}) == []
    assert problems(folder / "run") == []
