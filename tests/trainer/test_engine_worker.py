"""A worker whose part of a checkpoint cannot be written, with a stub of verl's engine."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.single_controller.base.decorator import MAGIC_ATTR

from verl_comprl.trainer import engine_worker
from verl_comprl.trainer.engine_worker import EngineWorker


@pytest.mark.parametrize("offloads", [True, False])
def test_an_engine_whose_checkpoint_failed_is_left_as_one_whose_was_written(
    offloads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verl brings offloaded weights to the device while it writes; the servers need that memory."""
    events: list[Any] = []

    @contextmanager
    def leaving_together() -> Iterator[None]:
        try:
            yield
        finally:
            events.append("left")

    def fail(*given: Any) -> None:
        events.append(given)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(engine_worker, "leaving_together", leaving_together)
    worker: Any = object.__new__(EngineWorker)

    def to(device: str, **parts: bool) -> None:
        events.append((device, parts))

    engine = SimpleNamespace(is_param_offload_enabled=offloads, to=to)
    worker.role, worker.actor = "actor", SimpleNamespace(save_checkpoint=fail, engine=engine)
    with pytest.raises(OSError, match="No space"):
        worker.save_checkpoint("folder", None, 3, max_ckpt_to_keep=None)
    offloaded = [("cpu", {"model": True, "optimizer": False, "grad": False})] if offloads else []
    assert events == [("folder", None, 3, None), "left", *offloaded]


def test_all_ranks_are_asked_to_save_as_verl_asks_them() -> None:
    ours, theirs = (getattr(kind.save_checkpoint, MAGIC_ATTR) for kind in (EngineWorker, DetachActorWorker))
    assert ours == theirs
