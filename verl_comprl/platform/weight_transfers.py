"""Limits of verl's transfers of weights from an engine's process to a server on the same device, and their failures."""

import os
from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import zmq
from verl.workers.rollout.utils import ensure_async_iterator

TRANSFER_SECONDS = 300
"""Limit of handing one bucket of weights to the server, and of asking whether it is there."""

RELEASE_SECONDS = 5
"""Limit of looking for a server that is left in a transfer; one that is there connects every tenth of a second."""


def limit_transfers(seconds: float) -> None:
    """Let verl's sender of weights give up after ``seconds`` without a receiver.

    It blocks in its process otherwise, if the server dies during a transfer: the engine could not be saved any more.
    """
    context = zmq.Context.instance()  # of verl's sender, in this process; these are defaults of new sockets
    for option in (zmq.SNDTIMEO, zmq.RCVTIMEO):
        context.setsockopt(option, int(seconds * 1000))


async def exhaust(weights: Any) -> None:
    """Produce the weights that are left, without sending them.

    Producing one is a collective of all training ranks. The others would wait for this one, and take its first weight
    of the next transfer for the one that they wait for.
    """
    async for _ in ensure_async_iterator(weights):
        pass


def release_receiver(handle: str, seconds: float = RELEASE_SECONDS) -> bool:
    """Let the server end a transfer whose sender has failed, with the weights that it has.

    verl's receiver waits without limit, and takes the first message of the next sender for a part of the old transfer.
    It is given an empty last bucket, so that its order ends well: an order that fails in one of several workers of a
    server leaves the answers of the others in vLLM's queues, for the orders that come next.

    Args:
        handle: Address of the transfer.
        seconds: How long to look for it.

    Returns:
        Whether there was one.
    """
    file = handle.removeprefix("ipc://")
    with suppress(OSError):
        os.remove(file)
    buffer = SharedMemory(create=True, size=1)
    # Buffer and bucket in one. A receiver that expects the handle of a device's memory fails at it.
    message = {"name": buffer.name, "size": buffer.size, "bucket_meta": {}, "is_last": True}
    socket, found = zmq.Context.instance().socket(zmq.REQ), False
    try:
        socket.setsockopt(zmq.LINGER, 1000)
        socket.bind(handle)
        for patience in (seconds, min(seconds, 1.0)):  # one that had no buffer yet takes the first message for it
            socket.setsockopt(zmq.SNDTIMEO, int(patience * 1000))
            socket.setsockopt(zmq.RCVTIMEO, int(seconds * 1000))
            socket.send_pyobj(message)
            found = True
            socket.recv()
    except zmq.Again:
        pass
    finally:
        socket.close()
        buffer.close()
        buffer.unlink()
        with suppress(OSError):
            os.remove(file)
    return found
