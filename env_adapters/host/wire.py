"""Length-prefixed JSON messages between a host and its environment processes.

JSON instead of pickle, because a process that runs untrusted actions must not be able to run code in the host.
"""

import json
import socket
import struct
from asyncio import StreamReader
from typing import Any

_LENGTH = struct.Struct("!I")
_LARGEST = 2**24
"""An observation of a million characters of any kind is less. The worst that a hostile process can send, empty lists in
a list, took the event loop 1.2 s and 370 MB."""


def encode(message: Any) -> bytes:
    """Return a message as bytes, with non-ASCII characters escaped so that lone surrogates survive.

    Raises:
        ValueError: If it is larger than 16 MiB.
    """
    body = json.dumps(message).encode("ascii")
    if len(body) > _LARGEST:
        raise ValueError(f"a message of {len(body)} bytes is too large; at most {_LARGEST}")
    return _LENGTH.pack(len(body)) + body


async def receive(reader: StreamReader) -> Any:
    """Return the next message.

    Raises:
        EOFError: If the connection was closed.
        ValueError: If the message is too large or malformed.
    """
    length = _check(await reader.readexactly(_LENGTH.size))
    return json.loads(await reader.readexactly(length))


def receive_blocking(connection: socket.socket) -> Any:
    """Return the next message, as ``receive``, without an event loop."""
    length = _check(_read(connection, _LENGTH.size))
    return json.loads(_read(connection, length))


def _check(header: bytes) -> int:
    (length,) = _LENGTH.unpack(header)
    if length > _LARGEST:
        raise ValueError(f"a message of {length} bytes is too large; at most {_LARGEST}")
    return length


def _read(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        if not (part := connection.recv(min(count - len(data), 2**20))):
            raise EOFError("the connection was closed")
        data += part
    return bytes(data)
