"""A worker whose part of a checkpoint cannot be written, with a stub of verl's engine."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.fsdp import FSDPModule
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.single_controller.base.decorator import MAGIC_ATTR

from verl_comprl.errors import UpdateMade
from verl_comprl.platform.ranks import OtherRankFailed, RanksApart
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


@pytest.mark.parametrize("name", ["save_checkpoint", "update_actor", "update_weights"])
def test_the_ranks_are_asked_as_verl_asks_them(name: str) -> None:
    ours, theirs = (getattr(getattr(kind, name), MAGIC_ATTR) for kind in (EngineWorker, DetachActorWorker))
    assert ours == theirs


class Broken(FSDPModule):
    """A module in the middle of a pass, with or without a way out."""

    def __new__(cls, state: str = "PRE_BACKWARD") -> "Broken":
        return object.__new__(cls)

    def __init__(self, state: str = "PRE_BACKWARD") -> None:
        state_of_module = SimpleNamespace(_training_state=SimpleNamespace(name=state))
        self._states = [state_of_module]

    def _get_fsdp_state(self) -> Any:
        return SimpleNamespace(_state_ctx=SimpleNamespace(all_states=self._states))


class WithoutWayOut(Broken):
    """As of a PyTorch that has neither ``reset_iter_state`` nor the FSDP2 of 2.11."""

    reset_iter_state: Any = property()  # reading it raises, as if there were none


class WithBrokenWayOut(Broken):
    def reset_iter_state(self) -> None:
        raise RuntimeError("an all-gather has failed")


@pytest.mark.parametrize(
    ("module", "trains"),
    [
        (WithoutWayOut(), False),
        (WithBrokenWayOut(), False),
        (WithoutWayOut("IDLE"), True),
        (SimpleNamespace(), True),
    ],
)
def test_after_a_pass_that_nothing_can_forget_no_update_is_made_any_more(
    module: Any, trains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in which some weights are not trained would end well; ``test_gradients`` has what can be forgotten."""

    def fail(**given: Any) -> None:
        raise MemoryError("no memory left")

    worker: Any = object.__new__(EngineWorker)
    worker.actor = SimpleNamespace(train_mini_batch=fail, engine=SimpleNamespace(module=module))
    monkeypatch.setattr(DetachActorWorker, "update_actor", lambda self, data: self.actor.train_mini_batch(data=data))
    with pytest.raises(MemoryError):
        worker.update_actor(None)
    worker.actor.train_mini_batch = lambda **given: "updated"
    if trains:
        assert worker.update_actor(None) == "updated"
    else:
        with pytest.raises(RuntimeError, match="cannot train further"):
            worker.update_actor(None)


async def test_a_rank_that_the_others_left_alone_begins_nothing_that_they_would_take_part_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its first collective operation would meet the one in which they wait."""
    made: list[str] = []

    @contextmanager
    def ending_together(group: Any) -> Iterator[None]:
        yield
        raise RanksApart("other ranks have not ended their part")

    monkeypatch.setattr(engine_worker, "ending_together", ending_together)
    for name in ("update_actor", "update_weights", "save_checkpoint"):
        monkeypatch.setattr(DetachActorWorker, name, lambda self, *given: made.append(given[0]))
    worker: Any = object.__new__(EngineWorker)
    worker.actor = None
    with pytest.raises(RanksApart, match="have not ended their part"):
        worker.update_actor("first")
    for order in (worker.update_actor, worker.save_checkpoint, worker.restart):
        with pytest.raises(RanksApart, match="still wait in an update"):
            order("second")
    with pytest.raises(RanksApart, match="still wait in an update"):
        await worker.update_weights("second")
    assert made == ["first"]


@pytest.mark.parametrize("fails", ["before", "after"])
def test_an_update_that_fails_after_the_weights_have_changed_says_so(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked next must not train on the same batch again."""
    worker: Any = object.__new__(EngineWorker)
    engine = SimpleNamespace(module=SimpleNamespace(), optimizer_step=lambda: 0.5)
    worker.actor = SimpleNamespace(engine=engine)
    worker._watch_steps(engine)

    def update(self: Any, data: str) -> str:
        if data == "before":
            raise MemoryError("no memory left")
        norm = self.actor.engine.optimizer_step()
        if data == "after":
            raise MemoryError("no memory left")
        return f"norm {norm}"

    monkeypatch.setattr(DetachActorWorker, "update_actor", update)
    error = UpdateMade if fails == "after" else MemoryError
    with pytest.raises(error, match="no memory left"):
        worker.update_actor(fails)
    assert worker.update_actor("well") == "norm 0.5"
    with pytest.raises(MemoryError):
        worker.update_actor("before")


@pytest.mark.parametrize("failing", ["this rank", "another rank", "apart"])
def test_where_one_rank_cannot_go_on_none_does(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    meetings: list[str] = []

    @contextmanager
    def ending_together(group: Any) -> Iterator[None]:
        meetings.append("met")
        yield
        if len(meetings) == 2 and failing != "this rank":  # the first is that of the update
            raise (OtherRankFailed if failing == "another rank" else RanksApart)("not this one")

    def fail(self: Any, data: Any) -> None:
        raise MemoryError("no memory left")

    monkeypatch.setattr(engine_worker, "ending_together", ending_together)
    monkeypatch.setattr(DetachActorWorker, "update_actor", fail)
    worker: Any = object.__new__(EngineWorker)
    module = WithoutWayOut() if failing == "this rank" else SimpleNamespace()
    worker.actor = SimpleNamespace(engine=SimpleNamespace(module=module))
    with pytest.raises(MemoryError):
        worker.update_actor(None)
    with pytest.raises(RanksApart if failing == "apart" else RuntimeError, match=r"still wait|cannot train further"):
        worker.update_actor(None)
    assert len(meetings) == 2
