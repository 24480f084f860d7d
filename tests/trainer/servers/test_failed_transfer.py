"""A transfer of weights that breaks: verl's sender and receiver, in two processes as in a run, and our adapter."""

import asyncio
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import zmq
from imported_once import forked

from verl_comprl.errors import WaitTimeout
from verl_comprl.platform import weight_transfers
from verl_comprl.trainer.extractor import server_adapter
from verl_comprl.trainer.extractor.server_adapter import ExtractorServerAdapter

NAMES = [f"layer {number}" for number in range(6)]
FAILS = "a weight that the server does not know"
SIZE = 200_000
"""Numbers of a weight, of which one fills most of a bucket of 1 MB."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def serve(pipe: Any, handle: str) -> None:
    """Carry out one order to receive weights after the other, as the engine of a server does."""
    from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver

    pipe.send("ready")
    while pipe.recv():
        found: dict[str, float] = {}

        def take(weights: Any, is_last: bool, found: dict[str, float] = found) -> None:
            if FAILS in dict(weights):
                raise TypeError("no mean")
            found.update({name: weight.mean().item() for name, weight in weights})

        try:
            BucketedWeightReceiver(handle, torch.device("cpu"), use_shm=True).receive_weights(take)
            pipe.send(found)
        except Exception as error:
            pipe.send(error)


class Server:
    """The process, and what verl's adapter has of it."""

    def __init__(self, handle: str) -> None:
        context = forked()
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, handle), daemon=True)
        self.process.start()
        assert self._pipe.recv() == "ready"
        self._orders = ThreadPoolExecutor(1)
        self.handle = handle
        self.received: list[Any] = []

    def order(self) -> Any:
        """Let it receive weights, after what it was ordered before; returns the answer to come."""

        def carry_out() -> None:
            self._pipe.send(True)
            self.received.append(self._pipe.recv())
            if isinstance(self.received[-1], Exception):
                raise self.received[-1]

        return asyncio.wrap_future(self._orders.submit(carry_out))

    def end(self) -> None:
        os.kill(self.process.pid or 0, signal.SIGCONT)
        self._pipe.send(False)
        self.process.join(10)  # one that is killed leaves semaphores of its libraries
        self.process.kill()
        self._orders.shutdown()


@pytest.fixture
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a short path, since a socket's must be short
        server = Server(f"ipc://{folder}/socket")
        yield server
        server.end()


@pytest.fixture
def adapter(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The adapter as verl makes it, but for its server, which here is no actor of Ray."""

    async def answered() -> None:
        pass

    def call(answer: Callable[..., Any]) -> SimpleNamespace:
        return SimpleNamespace(remote=answer)

    async def alive(_: Any) -> bool:
        return False

    adapter: Any = object.__new__(ExtractorServerAdapter)
    adapter.replica_rank, adapter.rollout_rank, adapter._has_server, adapter.use_shm = 1000, 0, True, True
    adapter.zmq_handle = server.handle
    adapter.config = SimpleNamespace(checkpoint_engine=SimpleNamespace(update_weights_bucket_megabytes=1))
    adapter._ensure_server_handle = lambda: True
    adapter.server_handle = SimpleNamespace(
        collective_rpc=call(lambda method, **_: server.order()),
        clear_kv_cache=call(answered),
        set_global_steps=call(lambda step: answered()),
    )
    monkeypatch.setattr(ExtractorServerAdapter, "_server_has_died", alive)
    release = weight_transfers.release_receiver
    monkeypatch.setattr(server_adapter, "release_receiver", lambda handle: release(handle, 1.0))
    weight_transfers.limit_transfers(1.0)
    yield adapter
    for option in (zmq.SNDTIMEO, zmq.RCVTIMEO):
        zmq.Context.instance().setsockopt(option, -1)


def weights(update: int, produced: list[str], then: Callable[[], None] = lambda: None) -> Iterator[tuple[str, Any]]:
    """Yield the weights of an update, several buckets; ``then`` happens after the first of these."""
    for number, name in enumerate(NAMES):
        if number == 3:
            then()
        produced.append(name)
        yield name, torch.full((SIZE,), float(update))


def complete(update: int) -> dict[str, float]:
    return dict.fromkeys(NAMES, float(update))


async def test_a_server_gives_up_a_transfer_that_broke_and_takes_the_next(adapter: Any, server: Server) -> None:
    def fail() -> None:
        raise RuntimeError("no memory is left")

    with pytest.raises(RuntimeError, match="no memory is left"):
        await adapter.update_weights(weights(1, [], fail), global_steps=1)
    for update in (2, 3):
        await adapter.update_weights(weights(update, []), global_steps=update)
    first, *others = server.received
    assert set(first) < set(NAMES) and others == [complete(2), complete(3)]


async def test_a_server_that_stood_still_takes_the_next_transfer_when_it_goes_on(adapter: Any, server: Server) -> None:
    """And the other workers, for which producing a weight is a collective, have not waited for this one."""
    await adapter.update_weights(weights(1, []), global_steps=1)
    produced: list[str] = []
    stop = partial(os.kill, server.process.pid or 0, signal.SIGSTOP)
    with pytest.raises(zmq.Again):
        await adapter.update_weights(weights(2, produced, stop), global_steps=2)
    assert produced == NAMES
    os.kill(server.process.pid or 0, signal.SIGCONT)
    await adapter.update_weights(weights(3, []), global_steps=3)
    first, broken, last = server.received
    assert set(broken) < set(NAMES) and (first, last) == (complete(1), complete(3))


async def test_a_server_that_cannot_take_the_weights_says_why(adapter: Any, server: Server) -> None:
    """And not only that nothing has come from it in time."""
    with pytest.raises(RuntimeError, match="a server of the extractor could not take the weights: ") as raised:
        await adapter.update_weights(iter([*weights(1, []), (FAILS, torch.zeros(1))]), global_steps=1)
    assert raised.value.__cause__ is server.received[0]
    await adapter.update_weights(weights(2, []), global_steps=2)
    assert server.received[-1] == complete(2)


async def test_an_order_that_no_server_ends_is_given_up(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_adapter, "TRANSFER_SECONDS", 0.05)
    adapter.server_handle.collective_rpc.remote = lambda method, **_: asyncio.get_running_loop().create_future()
    later = await adapter._execute_method("update_weights_from_ipc", non_block=True)
    text = "waited 0.05 s for a server of the extractor to end"
    with pytest.raises(WaitTimeout, match=f"{text} update_weights_from_ipc"):
        await later
    with pytest.raises(WaitTimeout, match=f"{text} start_weight_update"):
        await adapter._execute_method("start_weight_update")
