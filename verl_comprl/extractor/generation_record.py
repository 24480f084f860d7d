"""Record of one extractor call, with everything needed to train on it later, and the parquet file of such records.

Owns the record and its file format. A run keeps one record per bank entry, tens of thousands, so tokens are stored as
plain 32-bit arrays in memory and on disk.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

_ARRAYS = {"prompt_ids": "i", "response_ids": "i", "response_log_probs": "f"}
_TYPES = {"id": pa.string(), "kind": pa.string(), "format_failure": pa.bool_()} | {
    name: pa.list_(pa.from_numpy_dtype(np.dtype(code))) for name, code in _ARRAYS.items()
}
_ROWS = 200
"""Records converted at a time; conversion holds the interpreter's lock, so other threads wait for it."""


class CallKind(StrEnum):
    """Purpose of an extractor call."""

    DISTILL = "distill"
    MERGE = "merge"
    ANSWER = "answer"


@dataclass(frozen=True)
class GenerationRecord:
    """One extractor call as it was sampled.

    Attributes:
        id: Id of the call.
        kind: Purpose of the call.
        prompt_ids: Token ids of the prompt, kept as ``array("i")``.
        response_ids: Sampled token ids, kept as ``array("i")``.
        response_log_probs: Log-probs of ``response_ids`` under the generator, in nats, kept as ``array("f")``.
        weight_version: Version of the generator's weights.
        created_step: Actor step of the call.
        format_failure: Whether its answer could not be parsed.
        train_count: Number of times that it was trained on.
        last_trained: Actor step of the latest sample that it was trained on with.

    Raises:
        ValueError: If the numbers of sampled tokens and log-probs differ.
    """

    id: str
    kind: CallKind
    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    # Stored at generation and never recomputed. A text is used, and so trained on, long after it was written, and the
    # ratio of Eq. 3 is relative to the weights that wrote it. Log-probs recomputed before an update would be those of
    # the current weights: every ratio would be 1 and clipping would have no effect.
    response_log_probs: Sequence[float]
    weight_version: int
    created_step: int = 0
    format_failure: bool = False
    train_count: int = 0
    last_trained: int | None = None

    def __post_init__(self) -> None:
        """Convert the sequences to compact arrays."""
        tokens, log_probs = len(self.response_ids), len(self.response_log_probs)
        if tokens != log_probs:
            raise ValueError(f"extractor call {self.id} has {tokens} sampled tokens, but {log_probs} log-probs")
        for name, code in _ARRAYS.items():
            values = getattr(self, name)
            if not isinstance(values, array):
                object.__setattr__(self, name, array(code, values))


_SCHEMA = pa.schema([(field.name, _TYPES.get(field.name, pa.int64())) for field in fields(GenerationRecord)])


def write_records(path: Path, records: Sequence[GenerationRecord]) -> None:
    """Write records to a parquet file."""
    with pq.ParquetWriter(path, _SCHEMA, use_dictionary=False) as writer:
        for start in range(0, len(records), _ROWS):
            rows = records[start : start + _ROWS]
            columns = [
                pa.array([_converted(getattr(row, field.name)) for row in rows], field.type) for field in _SCHEMA
            ]
            writer.write_batch(pa.record_batch(columns, schema=_SCHEMA))


def read_records(path: Path) -> Iterator[GenerationRecord]:
    """Return the records that :func:`write_records` wrote, in order.

    Raises:
        ValueError: If the file has other columns.
    """
    with pq.ParquetFile(path) as file:
        if not file.schema_arrow.equals(_SCHEMA):
            raise ValueError(
                f"{path} does not hold generation records of this release: it has the columns "
                f"{', '.join(file.schema_arrow.names)}, not {', '.join(_SCHEMA.names)}"
            )
        for batch in file.iter_batches(_ROWS, use_threads=False):
            columns = [
                _arrays(batch[name], _ARRAYS[name]) if name in _ARRAYS else batch[name].to_pylist()
                for name in _SCHEMA.names
            ]
            for id, kind, *values in zip(*columns, strict=True):
                yield GenerationRecord(id, CallKind(kind), *values)


def _converted(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, array) else value


def _arrays(column: Any, code: str) -> list[array]:
    result = []
    for row in column:
        values = array(code)
        values.frombytes(row.values.to_numpy().tobytes())
        result.append(values)
    return result
