"""Weights arrive bit for bit: two ranks of a trainer and two of servers, in processes of their own."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from imported_once import forked

BUCKET = 1000
"""Bytes: smaller than the largest weight, and no multiple of the others."""


def weights(update: int) -> dict[str, torch.Tensor]:
    """Weights of several sizes and types, other ones in every update."""
    torch.manual_seed(update)
    return {
        "large": torch.randn(40, 17),
        "scalar": torch.randn(()),
        "odd": torch.randn(3).bfloat16(),
        "after": torch.randn(5, 5),
        "bytes": torch.randint(0, 255, (7,), dtype=torch.uint8),
        "doubles": torch.randn(90).double(),
    }


def serve(pipe: Any, is_master: bool, sends: bool) -> None:
    """Run one rank: answer calls of the engine's methods, as a worker of verl does."""
    from verl.checkpoint_engine.base import CheckpointEngineRegistry

    import verl_comprl.platform.gloo_engine  # noqa: F401  the decorator registers

    arguments = {"is_master": is_master} if sends else {}  # verl gives it to the trainer's ranks only
    engine: Any = CheckpointEngineRegistry.new("comprl_gloo", bucket_size=BUCKET, timeout_seconds=60.0, **arguments)
    produced: list[str] = []

    def produce(update: int) -> Any:
        for name, weight in weights(update).items():
            produced.append(name)
            yield name, weight

    async def receive() -> dict[str, torch.Tensor]:
        return {name: weight.clone() async for name, weight in engine.receive_weights(global_steps=1)}

    while True:
        method, values = pipe.recv()
        if method == "end":
            return
        if method == "update" and sends:
            produced.clear()
            asyncio.run(engine.send_weights(produce(values["update"])))
            pipe.send(list(produced))
        elif method == "update":
            pipe.send({name: weight.tolist() for name, weight in asyncio.run(receive()).items()})
        else:
            pipe.send(getattr(engine, method)(**values))


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_weights_arrive_bit_for_bit_in_every_update() -> None:
    from verl_comprl.platform.gloo_engine import GlooCheckpointEngine

    context = forked()
    pipes, processes = [], []
    for is_master, sends in ((True, True), (False, True), (False, False), (False, False)):
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, is_master, sends), daemon=True)
        process.start()
        pipes.append(ours)
        processes.append(process)

    def call(method: str, arguments: list[dict[str, Any]]) -> list[Any]:
        for pipe, values in zip(pipes, arguments, strict=True):
            pipe.send((method, values))
        return [pipe.recv() for pipe in pipes]

    try:
        for update in (1, 2):
            metadata = call("prepare", [{}] * 4)
            assert metadata[1:] == [None] * 3
            actor, rollout = GlooCheckpointEngine.build_topology(2, 2, metadata)
            assert (actor["rank"], rollout["rank"]) == ([0, -1], [1, 2])
            ranks = [
                {name: values[rank] for name, values in group.items()} for group in (actor, rollout) for rank in (0, 1)
            ]
            call("init_process_group", ranks)
            sent, other, *received = call("update", [{"update": update}] * 4)
            expected = weights(update)
            assert sent == other == list(expected), "a rank of the trainer did not produce all weights"
            assert received == [{name: weight.tolist() for name, weight in expected.items()}] * 2
            call("finalize", [{}] * 4)
    finally:
        for pipe, process in zip(pipes, processes, strict=True):
            pipe.send(("end", {}))
            process.join(10)
            process.kill()


@pytest.mark.timeout(60)
def test_a_sync_that_failed_does_not_spoil_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync of verl ends with ``finalize`` only if it succeeds; the extractor's is tried again."""
    from verl_comprl.platform import gloo_engine

    monkeypatch.setattr(gloo_engine, "_own_address", lambda: "127.0.0.1")
    sender = gloo_engine.GlooCheckpointEngine(BUCKET, is_master=True, timeout_seconds=20)
    receiver = gloo_engine.GlooCheckpointEngine(BUCKET, timeout_seconds=20)
    for update in (1, 2):
        address = sender.prepare()
        assert receiver.prepare() is None and address is not None
        with ThreadPoolExecutor(2) as ranks:
            joining = [
                ranks.submit(engine.init_process_group, rank, 2, address)
                for rank, engine in enumerate((sender, receiver))
            ]
            for joined in joining:
                joined.result()
            tensors = torch.full((2,), float(update)), torch.zeros(2)
            sending = [
                ranks.submit(asyncio.run, engine._broadcast(tensor))
                for engine, tensor in zip((sender, receiver), tensors, strict=True)
            ]
            assert [sent.result().tolist() for sent in sending] == [[update, update]] * 2
        # Nobody calls finalize: the sync has failed after this.


async def test_a_sender_that_fails_produces_what_is_left() -> None:
    """The trainer's other ranks would wait for it in the collective that produces the next weight."""
    from verl_comprl.platform.gloo_engine import GlooCheckpointEngine

    class Gone:
        def broadcast(self, *_: Any) -> None:
            raise ConnectionError("a server is gone")

    engine, produced = GlooCheckpointEngine(BUCKET, is_master=True), list[str]()
    engine._group = Gone()

    def produce() -> Any:
        for name, weight in weights(1).items():
            produced.append(name)
            yield name, weight

    with pytest.raises(ConnectionError, match="a server is gone"):
        await engine.send_weights(produce())
    assert produced == list(weights(1))


def test_the_header_of_a_bucket_is_data_and_nothing_else() -> None:
    from verl.checkpoint_engine.base import TensorMeta

    from verl_comprl.platform.gloo_engine import _read_metas, _write_metas

    metas = [
        TensorMeta("a.weight", torch.Size([2, 3]), torch.bfloat16, 0, 12, 0),
        TensorMeta("b", torch.Size([]), torch.int64, 8, 16, 12),
    ]
    assert _read_metas(_write_metas(metas)) == metas and _read_metas(_write_metas([])) == []
    with pytest.raises(ValueError, match=r"'torch\.load' cannot be received"):
        _read_metas(b'[["a", [1], "torch.load", 0, 1, 0]]')
