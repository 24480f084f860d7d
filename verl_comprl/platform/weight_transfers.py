"""Limits of verl's transfers of weights from an engine's process to a server on the same device."""

import zmq

TRANSFER_SECONDS = 300
"""Limit of handing one bucket of weights to the server, and of asking whether it is there."""


def limit_transfers(seconds: float) -> None:
    """Let verl's sender of weights give up after ``seconds`` without a receiver.

    It blocks in its process otherwise, if the server dies during a transfer: the engine could not be saved any more.
    """
    context = zmq.Context.instance()  # of verl's sender, in this process; these are defaults of new sockets
    for option in (zmq.SNDTIMEO, zmq.RCVTIMEO):
        context.setsockopt(option, int(seconds * 1000))
