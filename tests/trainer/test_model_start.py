"""The start of both models: neither an error of the actor nor the limit has to wait for an extractor that hangs."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from verl_comprl.config.slots import ACTOR_POOL
from verl_comprl.errors import WaitTimeout
from verl_comprl.trainer import trainer as module
from verl_comprl.trainer.engine_sharing import EngineSharing
from verl_comprl.trainer.trainer import ComplementarySync


@pytest.fixture
def end() -> Iterator[threading.Event]:
    """Ends the start of an extractor that hangs."""
    end = threading.Event()
    yield end
    end.set()


def make_trainer(folder: Path, end: threading.Event, placement: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    trainer: Any = object.__new__(ComplementarySync)
    trainer.config = OmegaConf.create({"trainer": {"default_local_dir": str(folder)}})
    shared = placement == "shared"
    trainer.comprl = SimpleNamespace(shares_slots=shared, work_timeout=0.1, experience=True)
    trainer.progress, trainer.engines = SimpleNamespace(note=None), None
    trainer.prepare = trainer.take_back_marker = lambda *_: None
    trainer.resource_pool_manager = SimpleNamespace(resource_pool_dict={ACTOR_POOL: "slots"})
    trainer.experience_runtime = SimpleNamespace(open=lambda folder, is_own: None, start=lambda *_: end.wait(40))
    for name in ("resume_folder", "rewind_run", "reserve", "slot_groups"):
        monkeypatch.setattr(module, name, lambda *_: None)
    return trainer


def test_an_error_of_the_actor_is_seen_at_once(
    tmp_path: Path, end: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any) -> None:
        raise MemoryError("the actor does not fit")

    monkeypatch.setattr(EngineSharing, "_setup", fail)
    started = time.monotonic()
    with pytest.raises(MemoryError, match="does not fit"):
        make_trainer(tmp_path, end, "own", monkeypatch)._setup()
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("placement", ["own", "shared"])
def test_all_slots_are_reserved_before_any_model_loads(
    tmp_path: Path, end: threading.Event, placement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a run for which there is no room would say so minutes later, or wait for the other model's slots."""
    events: list[str] = []
    trainer = make_trainer(tmp_path, end, placement, monkeypatch)
    monkeypatch.setattr(module, "slot_groups", lambda _: "groups")
    monkeypatch.setattr(module, "reserve", lambda groups: events.append(f"reserve {groups}"))
    monkeypatch.setattr(EngineSharing, "_setup", lambda self: events.append("actor"))
    trainer.experience_runtime.start = lambda *_: events.append("extractor")
    trainer.comprl.work_timeout = 30
    trainer._setup()
    assert events[0] == "reserve groups" and sorted(events[1:]) == ["actor", "extractor"]


@pytest.mark.parametrize("placement", ["own", "shared"])
def test_an_extractor_that_does_not_start_ends_the_run(
    tmp_path: Path, end: threading.Event, placement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EngineSharing, "_setup", lambda self: None)
    with pytest.raises(WaitTimeout, match=r"waited 0\.1 s for the extractor to start"):
        make_trainer(tmp_path, end, placement, monkeypatch)._setup()
