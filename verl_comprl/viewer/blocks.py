"""Compressed blocks of JSON inside the page, and tables whose rows are spread over blocks.

A block is gzip in base64, so no text of a run stands in the page as it is, and none can end the element it is in.
The browser decompresses a block when something of it is shown (``web/data.js``).
"""

import base64
import gzip
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

ROW_BYTES = 1 << 18
"""JSON of the rows in one block: a quarter of a megabyte takes a few milliseconds to decompress and parse."""

_DUMP = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


class Block(NamedTuple):
    """Name and base64 text of a block."""

    name: str
    text: str


def dump(data: Any) -> bytes:
    """Return ``data`` as JSON; NaN and infinities become ``null``."""
    return orjson.dumps(data, option=_DUMP, default=str)


def compress(json: bytes) -> str:
    """Return the text of a block; equal JSON gives an equal text."""
    return base64.b64encode(gzip.compress(json, 6, mtime=0)).decode()


def pack(name: str, json: bytes) -> Block:
    """Return the block of this JSON."""
    return Block(name, compress(json))


class RowBlocks:
    """Collects the details of a table's rows, in their order, in compressed groups of about ``ROW_BYTES``."""

    def __init__(self) -> None:
        """Start without rows."""
        self._rows: list[bytes] = []
        self._bytes = 0
        self._count = 0
        self._texts: list[str] = []
        self._starts: list[int] = []

    def add(self, row: Any) -> None:
        """Add the details of the next row."""
        if not self._rows:
            self._starts.append(self._count)
        self._rows.append(dump(row))
        self._bytes += len(self._rows[-1])
        self._count += 1
        if self._bytes >= ROW_BYTES:
            self._close()

    def close(self) -> tuple[list[int], list[str]]:
        """Return the number of each group's first row, and the groups."""
        if self._rows:
            self._close()
        return self._starts, self._texts

    def _close(self) -> None:
        self._texts.append(compress(b"[" + b",".join(self._rows) + b"]"))
        self._rows, self._bytes = [], 0


def table_blocks(name: str, columns: Mapping[str, Sequence[Any]], details: RowBlocks) -> Iterator[Block]:
    """Return the blocks of a table: its columns, which the browser reads as a whole, and ``<name>/0``, … with the rows.

    Args:
        name: Name of the block with the columns.
        columns: Values of all rows by column; ``id`` is unique.
        details: What else there is of each row.
    """
    starts, texts = details.close()
    yield pack(name, dump({"columns": columns, "starts": starts}))
    yield from (Block(f"{name}/{number}", text) for number, text in enumerate(texts))
