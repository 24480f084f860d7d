"""A learner with a real training buffer, and with engine and servers that can be told to fail."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from learning import Extractor, Start

from verl_comprl.extractor.buffer import TrainingBuffer
from verl_comprl.trainer.extractor import learner as module
from verl_comprl.trainer.extractor.learner import ExtractorLearner


@pytest.fixture
def start(make_record: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start a learner whose buffer holds one batch: the records a and b."""
    monkeypatch.setattr(module, "wait_for", lambda result, seconds, what: result)
    monkeypatch.setattr(module, "FIRST_BACKOFF", 0.02)
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    started: list[ExtractorLearner] = []

    def start(
        failures: int, *, place: str = "update", max_failures: int = 5, thread: bool = True
    ) -> tuple[ExtractorLearner, Extractor, TrainingBuffer]:
        buffer = TrainingBuffer(2, alpha=0.5, cooldown=1)
        for id, reward in (("a", 1.0), ("b", -1.0)):
            buffer.add(make_record(id))
            buffer.record_reward(id, reward)
        buffer.collect()
        manager = SimpleNamespace(
            next_batch=SimpleNamespace(remote=lambda version: buffer.next_batch(1, version)),
            trained=SimpleNamespace(remote=buffer.trained),
        )
        extractor: Any = Extractor([RuntimeError(f"no memory {n}") for n in range(failures)], place)
        learner = ExtractorLearner(extractor, manager, max_failures=max_failures)
        started.append(learner)
        if thread:
            learner.start()
        return learner, extractor, buffer

    yield start
    for learner in started:
        learner.stop(10.0)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch, start: Start) -> None:
    """A second before each further attempt: on a busy machine an attempt may take longer than the usual pause here."""
    monkeypatch.setattr(module, "FIRST_BACKOFF", 1.0)
    monkeypatch.setattr(module, "LONGEST_BACKOFF", 1.0)
