"""A worker whose part of a checkpoint cannot be written, with a stub of verl's engine."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from two_ranks import two_ranks
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.single_controller.base.decorator import MAGIC_ATTR

from verl_comprl.errors import UpdateMade
from verl_comprl.platform.ranks import RanksApart
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
        state_of_module = SimpleNamespace(_training_state=SimpleNamespace(name=state), _fsdp_param_group=None)
        self._states = [state_of_module]

    def _get_fsdp_state(self) -> Any:
        return SimpleNamespace(_state_ctx=SimpleNamespace(all_states=self._states))


def stub_engine(module: Any = None, **parts: Any) -> Any:
    """Return an engine after an update that has failed, by default outside of a pass."""
    offloads = {"is_param_offload_enabled": False, "is_optimizer_offload_enabled": False}
    mesh = SimpleNamespace(ndim=1)
    engine = SimpleNamespace(module=module or Broken("IDLE"), to=lambda *_, **__: None, device_mesh=mesh, **offloads)
    vars(engine).update(parts)
    return engine


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
        pytest.param(object.__new__(FullyShardedDataParallel), False, id="FSDP1"),
    ],
)
def test_after_a_pass_that_nothing_can_forget_no_update_is_made_any_more(
    module: Any, trains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in which some weights are not trained would end well; ``test_gradients`` has what can be forgotten."""

    def fail(**given: Any) -> None:
        raise MemoryError("no memory left")

    worker: Any = object.__new__(EngineWorker)
    worker.actor = SimpleNamespace(train_mini_batch=fail, engine=stub_engine(module))
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
        with pytest.raises(RanksApart, match="have gone apart"):
            order("second")
    with pytest.raises(RanksApart, match="have gone apart"):
        await worker.update_weights("second")
    assert made == ["first"]


def trained_worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a worker whose update is one of a real optimizer, which fails where its data says."""
    weight = torch.nn.Parameter(torch.ones(4))
    engine = stub_engine(optimizer=torch.optim.AdamW([weight], foreach=True), weight=weight)
    engine.optimizer_step = lambda: engine.optimizer.step() or 0.5
    worker: Any = object.__new__(EngineWorker)
    worker.actor = SimpleNamespace(engine=engine)
    worker._watch_steps(engine)

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError("no memory left")

    def update(self: Any, fails: str) -> str:
        weight.grad = torch.ones(4)
        if fails == "before":
            fail()
        with monkeypatch.context() as patch:
            if fails in ("_foreach_sqrt", "zeros_like"):  # the largest temporary, and moments of the first step
                patch.setattr(torch, fails, fail)
            norm = self.actor.engine.optimizer_step()
        if fails == "after":
            fail()
        return f"norm {norm}"

    monkeypatch.setattr(DetachActorWorker, "update_actor", update)
    return worker


@pytest.mark.parametrize("fails", ["before", "after"])
def test_an_update_that_fails_after_the_weights_have_changed_says_so(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked next must not train on the same batch again."""
    worker = trained_worker(monkeypatch)
    with pytest.raises(UpdateMade if fails == "after" else MemoryError, match="no memory left"):
        worker.update_actor(fails)
    assert worker.update_actor("well") == "norm 0.5"
    with pytest.raises(MemoryError):
        worker.update_actor("before")


@pytest.mark.parametrize("fails", ["_foreach_sqrt", "zeros_like"])
def test_half_a_step_is_not_made_again_and_leaves_no_moments(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moments have advanced, or are there in part, with which not even a resumed run could train."""
    worker = trained_worker(monkeypatch)
    if fails == "_foreach_sqrt":
        worker.update_actor("well")
    with pytest.raises(UpdateMade, match="no memory left"):
        worker.update_actor(fails)
    with pytest.raises(RuntimeError, match="cannot train further"):
        worker.update_actor("well")
    engine = worker.actor.engine
    resumed = torch.optim.AdamW([engine.weight], foreach=True)
    resumed.load_state_dict(engine.optimizer.state_dict())
    resumed.step()
    assert resumed.state[engine.weight]["step"] == 1


@pytest.mark.parametrize("fails", [False, True])
def test_a_failed_update_leaves_the_device_as_one_that_was_made(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verl does not offload what it could not load in full, and servers wake up in that memory."""
    worker, moved = trained_worker(monkeypatch), []

    def to(device: str, **parts: bool) -> None:
        moved.append((device, parts))
        if fails:
            raise MemoryError("no memory left")

    worker.actor.engine.to, worker.actor.engine.is_optimizer_offload_enabled = to, True
    with pytest.raises(MemoryError):
        worker.update_actor("before")
    assert moved == [("cpu", {"model": False, "optimizer": True, "grad": False})]
    if fails:
        with pytest.raises(RuntimeError, match="cannot train further"):
            worker.update_actor("well")
    else:
        assert worker.update_actor("well") == "norm 0.5"


@pytest.mark.parametrize("copies", [False, True])
def test_half_a_step_of_ranks_that_hold_copies_is_saved_nowhere(copies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run would train on copies that differ; parts of the same weights are of no such kind."""
    worker, saved = trained_worker(monkeypatch), list[str]()
    monkeypatch.setattr(DetachActorWorker, "save_checkpoint", lambda self, *given: saved.append(given[0]))
    monkeypatch.setattr(engine_worker, "leaving_together", nullcontext)
    monkeypatch.setattr(engine_worker, "tell_each_other", lambda said, group: [said, (1, 1, True)])
    worker.actor.engine.device_mesh.ndim = 2 if copies else 1
    with pytest.raises(UpdateMade):
        worker.update_actor("_foreach_sqrt")
    with pytest.raises(RanksApart) if copies else nullcontext():
        worker.save_checkpoint("folder")
    assert saved == ([] if copies else ["folder"])


def update_in_ranks(rank: int, file: str, pipe: Any) -> None:
    """Make updates that fail in one rank, and send how each ended."""
    from torch import distributed

    from verl_comprl.platform.ranks import meeting_group

    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    with pytest.MonkeyPatch.context() as patch:
        worker = trained_worker(patch)
        worker._meeting = meeting_group()
        for fails in (("before", "before"), ("after", "well"), ("_foreach_sqrt", "well"), ("well", "well")):
            try:
                pipe.send(worker.update_actor(fails[rank]))
            except Exception as error:
                pipe.send(type(error).__name__)
        pipe.send(len(worker.actor.engine.optimizer.state))
    distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ranks_agree_on_whether_an_update_was_made(tmp_path: Path) -> None:
    """With sequence parallelism nothing that they do together follows the step: one may take it, and another fail."""
    with two_ranks(update_in_ranks, tmp_path) as pipes:
        for expected in ("MemoryError", "UpdateMade", "UpdateMade", "RuntimeError", 0):
            assert [pipe.recv() for pipe in pipes] == [expected] * 2


@pytest.mark.parametrize("failing", ["this rank", "another rank", "apart"])
def test_where_one_rank_cannot_go_on_none_does(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def tell_each_other(said: Any, group: Any) -> list[Any]:
        if failing == "apart":
            raise RanksApart("others have not said anything")
        return [said, (0, 0, failing == "this rank")]

    def fail(self: Any, data: Any) -> None:
        raise MemoryError("no memory left")

    monkeypatch.setattr(engine_worker, "tell_each_other", tell_each_other)
    monkeypatch.setattr(DetachActorWorker, "update_actor", fail)
    worker: Any = object.__new__(EngineWorker)
    worker.actor = SimpleNamespace(engine=stub_engine(WithoutWayOut() if failing == "this rank" else None))
    with pytest.raises(MemoryError):
        worker.update_actor(None)
    with pytest.raises(RanksApart if failing == "apart" else RuntimeError, match=r"gone apart|cannot train"):
        worker.update_actor(None)
