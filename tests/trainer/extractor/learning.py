"""Engine and servers of an extractor that can be told to fail, for tests of what trains it."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from verl_comprl.extractor.buffer import TrainingBatch, TrainingBuffer
from verl_comprl.trainer.extractor.learner import ExtractorLearner


class Extractor:
    """Engine and servers; ``failures`` are raised one after the other, at the given place."""

    def __init__(self, failures: list[Exception], place: str) -> None:
        self.failures: list[Any] = failures
        self.place = place
        self.weight_version = 0
        self.lock = threading.RLock()
        self.trained_on: list[list[str]] = []
        self.entered = threading.Event()
        self.late: list[str] = []
        self.grad_norm = 1.0
        self.is_down, self.lost_servers, self.work_is_late = False, 0, False
        self.copied = 0
        """Blocks for changing weights that ended without an error: then servers get them that did not have to pause."""
        self.hurries: Callable[[], bool] = lambda: False

    def _fail(self, place: str) -> None:
        if place == self.place and self.failures:
            self.entered.set()
            raise self.failures.pop(0)

    def wait_for_late_work(self) -> None:
        self._fail("wait")
        if self.late:
            self.trained_on.append(self.late)
            self.late, self.weight_version = [], self.weight_version + 1

    def restore(self) -> None:
        self._fail("restore")
        self.is_down = False

    def pause(self) -> None:
        """Of servers that do not have to; tests replace it."""

    @contextmanager
    def changing_weights(self) -> Iterator[None]:
        self.pause()
        yield
        self.copied += 1
        self.is_down = self.place == "sync" and bool(self.failures)
        self._fail("sync")

    def update(self, batch: TrainingBatch) -> dict[str, float]:
        records = [record.id for record in batch.records]
        if self.place == "late" and self.failures:
            self.late = records  # it takes its step when nobody waits for it any more
            self._fail("late")
        self._fail("update")
        self.weight_version += 1
        self.trained_on.append(records)
        return {"loss": 1.0, "grad_norm": self.grad_norm}


Start = Callable[..., tuple[ExtractorLearner, Extractor, TrainingBuffer]]


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def values(learner: ExtractorLearner) -> tuple[float, ...]:
    metrics = learner.metrics()
    return tuple(metrics[f"comprl/extractor/{name}"] for name in ("updates", "failed", "given_up"))
