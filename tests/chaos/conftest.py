"""A folder with models and tasks, for a run of each module."""

import json
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from running import warm_started, with_tasks


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_tasks(tmp_path_factory.mktemp("chaos"), warm_started())


@pytest.fixture(scope="module")
def mood(folder: Path) -> Path:
    """File that says how the environments of ``folder`` behave (``moody.py``)."""
    file = folder / "mood"
    file.write_text("")
    for data in (folder / "data").iterdir():
        table = parquet.read_table(data)
        rows = table.to_pylist()
        for row in rows:
            options = json.loads(row["extra_info"]["environment_options"]) | {"mood": str(file)}
            row["extra_info"] |= {"environment": "moody:Moody", "environment_options": json.dumps(options)}
        parquet.write_table(table.from_pylist(rows, schema=table.schema), data)
    return file
