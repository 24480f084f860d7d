"""A snapshot whose files are small may hold values that are not: reading it does not take gigabytes."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from forging import forge

from verl_comprl.experience import Experience
from verl_comprl.experience.schema import derive_id
from verl_comprl.experience.transfer.snapshot import write_snapshot

IDENTITY = {"model": "fake", "dimension": 64}

READING = r"""
import re, sys
from pathlib import Path
from verl_comprl.experience.transfer.snapshot import SnapshotError, read_snapshot

def peak():  # unlike ru_maxrss, which begins with that of the process before
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])

before = peak()
try:
    read_snapshot(Path(sys.argv[1]), None)
except SnapshotError as error:
    print(peak() - before, error)
"""


@pytest.mark.parametrize("kind", ["rows", "texts", "text", "lists", "structs"])
def test_a_small_file_does_not_take_gigabytes(tmp_path: Path, kind: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = 200
    entry = [Experience(id=derive_id("e", n), title="", content="c") for n in range(count)]
    write_snapshot(tmp_path / "s", entry, np.repeat(np.eye(1, 64, dtype=np.float32), count, axis=0), IDENTITY)
    repeated, size = (3_000_000, 10) if kind == "rows" else (count, 12_000_000)
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(repeated, np.int32)), pa.array(["x" * size]))
    if kind == "text":
        column = pa.array(["x" * 100_000_000, *[""] * (count - 1)])
    elif kind == "lists":
        column = pa.array([[None] * 30_000_000, *[[]] * (count - 1)], pa.list_(pa.string()))
    elif kind == "structs":
        column = pa.StructArray.from_arrays([column, column], ["a", "b"])
    table = pa.table({"id": column, "title": column, "content": column})
    pq.write_table(table, tmp_path / "forged", compression="zstd")
    del table, column
    data = (tmp_path / "forged").read_bytes()
    assert len(data) < 200_000
    forge(tmp_path / "s", "data/entries.parquet", data)
    reading = [sys.executable, "-c", READING, str(tmp_path / "s")]  # on its own: the peak of this process lasts
    more, _, error = subprocess.run(reading, capture_output=True, text=True, timeout=300).stdout.partition(" ")
    assert re.search(r"should have 200 entries, has 3000000|more than .* per entry", error)
    assert int(more) < 400_000  # KiB
