"""Converts entries to the table and card of a Hugging Face dataset, and the table back to entries.

Owns the columns and the text of the card. The folder, and the check that it is undamaged, are in ``snapshot``.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from verl_comprl.experience.schema import SCHEMA_VERSION, Experience, TaskUsage

ENTRIES_FILE = "data/entries.parquet"

_READ_BATCH = 4096
_ENTRY_VALUES = 1000
_ENTRY_BYTES = 256 * 1024
"""Mean number of values and size of an entry from which a table is taken for an attack; a content has some thousand
characters."""

_CARD = """\
---
pretty_name: Experience bank
tags:
- verl-comprl
- complementary-rl
configs:
- config_name: default
  data_files:
  - split: train
    path: {entries_file}
---

# Experience bank

{count} entries ({quarantined} quarantined) of {tasks} tasks in {environments} environments, written by a model that
read the episodes of another model (Complementary RL). Each row is one entry with its provenance and its counters.

**The text is model-written and untrusted.** It may contain anything that an environment displayed or that a model was
persuaded to write: treat it as data, never as instructions, and sanitise it before it goes into a prompt.

* `{entries_file}`: the entries. `datasets.load_dataset` on this folder gives them as split `train`.
* `vectors.safetensors`: tensor `vectors`, float32 and L2-normalised, one row per entry in the same order.
* `manifest.json`: number of entries, checksums, schema version ({schema_version}) and the embedder:

```json
{embedding}
```

Load it into a bank with `comprl bank import --path BANK_FOLDER THIS_FOLDER`.
"""


def to_parquet(entries: Sequence[Experience]) -> bytes:
    """Return the entries as a parquet file, one typed column per field; equal entries give equal bytes."""
    import pyarrow as pa  # imported here: it takes 0.1 s, and most processes with a bank write no snapshot
    import pyarrow.parquet as pq

    columns = {
        str: pa.string(),
        int: pa.int64(),
        float: pa.float64(),
        int | None: pa.int64(),
        bool | None: pa.bool_(),
        tuple[str, ...]: pa.list_(pa.string()),
    }
    columns[tuple[TaskUsage, ...]] = pa.list_(
        pa.struct([(name, columns[field.annotation]) for name, field in TaskUsage.model_fields.items()])
    )
    schema = pa.schema([(name, columns[field.annotation]) for name, field in Experience.model_fields.items()])
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([entry.model_dump() for entry in entries], schema=schema), sink)
    return sink.getvalue().to_pybytes()


def from_parquet(data: bytes, count: int) -> list[Experience]:
    """Return the entries of a parquet file.

    Args:
        data: The file. Compressed, a few bytes can stand for gigabytes.
        count: Entries that it should have.

    Raises:
        ValueError: If it is not a parquet file, or its rows are not entries of this schema.
    """
    import pyarrow as pa

    try:
        rows = [row for batch in _batches(data, count) for row in batch.to_pylist()]
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"not a parquet file: {error}") from error
    try:
        return TypeAdapter(list[Experience]).validate_python(rows)
    except ValidationError as error:
        first = error.errors()[0]
        row, *field = first["loc"]
        raise ValueError(f"row {row} is not an entry: {'.'.join(map(str, field))}: {first['msg']}") from error


def _batches(data: bytes, count: int) -> Iterator[Any]:
    """Yield the rows of a parquet file in record batches, none of which is unpacked before its size is known."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.read_metadata(pa.BufferReader(data))
    if file.num_rows != count:
        raise ValueError(f"should have {count} entries, has {file.num_rows}")
    groups = [file.row_group(at) for at in range(file.num_row_groups)]
    columns = [group.column(at) for group in groups for at in range(group.num_columns)]
    most = count + 64
    if sum(column.num_values for column in columns) > _ENTRY_VALUES * most:
        raise ValueError(f"has more than {_ENTRY_VALUES} values per entry")

    def check(size: int) -> None:
        if size > _ENTRY_BYTES * most:
            raise ValueError(f"has more than {_ENTRY_BYTES} bytes per entry")

    check(size := sum(column.total_uncompressed_size for column in columns))
    # A text that stands in many rows is stored once: it is counted in each before it is copied for each.
    texts = [column.path_in_schema for column in columns if column.physical_type == "BYTE_ARRAY"]
    reader = pq.ParquetFile(pa.BufferReader(data), read_dictionary=texts)
    # Not read_table: its threads outlive the call, and one that frees `data` while Python exits aborts the process.
    for batch in reader.iter_batches(_READ_BATCH, use_threads=False):
        check(size := size + sum(map(_text_bytes, batch.columns)))
        yield batch


def _text_bytes(column: Any) -> int:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        lengths = pc.call_function("binary_length", [column.dictionary])
        return pc.call_function("sum", [lengths.take(column.indices)]).as_py() or 0
    if pa.types.is_list(column.type):
        return _text_bytes(column.flatten())
    return sum(map(_text_bytes, column.flatten())) if pa.types.is_struct(column.type) else 0


def card(entries: Sequence[Experience], embedding: dict[str, Any]) -> str:
    """Return the dataset card: Markdown with the header that tells ``datasets`` where the entries are."""
    return _CARD.format(
        entries_file=ENTRIES_FILE,
        count=len(entries),
        quarantined=sum(bool(entry.quarantined) for entry in entries),
        tasks=len({task for entry in entries for task in entry.tasks}),
        environments=len({environment for entry in entries for environment in entry.environments}),
        schema_version=SCHEMA_VERSION,
        embedding=json.dumps(embedding, indent=1),
    )
