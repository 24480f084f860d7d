"""SWE-bench tasks, read from files with rows of SWE-bench's schema.

Owns reading both versions of the schema, and the split into training and held-out tasks. ``evaluation`` interprets the
fields for grading.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from env_adapters.dataset import SPLITS
from env_adapters.json_lines import objects_of

VARIABLE = "SWEBENCH_DATA"
FIXTURES = Path(__file__).parent / "fixtures"
"""Bundled small repositories with tasks, used by default."""

BUNDLED = "bundled"
"""Name of the tasks in ``FIXTURES``."""

HELD_OUT = 0.25
"""Share of the tasks that is held out by default."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One task; the fields are SWE-bench's, the last four those of its version 5 and empty in older rows."""

    instance_id: str
    repo: str
    base_commit: str
    problem_statement: str
    patch: str
    test_patch: str
    FAIL_TO_PASS: tuple[str, ...]
    PASS_TO_PASS: tuple[str, ...]
    version: str = ""
    image: str = ""
    eval_script: str = ""
    log_parser: str = ""
    eval_type: str = ""

    @property
    def task_id(self) -> str:
        """Name of the task in this package."""
        return f"swebench/{self.instance_id}"

    @property
    def goal(self) -> str:
        """The task in words."""
        return f"Solve this issue of the repository {self.repo}:\n\n{self.problem_statement.strip()}"


def parse_row(row: dict[str, Any]) -> Instance:
    """Return the task in a row.

    Raises:
        ValueError: If a field is missing or malformed.
    """
    name = row.get("instance_id")
    values: dict[str, Any] = {}
    for field in Instance.__dataclass_fields__.values():
        value: Any = row.get(field.name)
        if field.name.isupper():
            try:
                value = tuple(json.loads(value) if isinstance(value, str) else value)
            except (TypeError, ValueError, RecursionError):
                value = None
            well_formed = value is not None and all(isinstance(test, str) for test in value)
        else:
            value = field.default if value is None else value
            well_formed = isinstance(value, str)
        if not well_formed:
            raise ValueError(f"task {name!r}: {field.name} is missing or malformed, got {str(value)[:80]!r}")
        values[field.name] = value
    return Instance(**values)


def data_file(data: str | None) -> Path:
    """Return the file given by the option ``data``, else by ``$SWEBENCH_DATA``, else that of ``BUNDLED``."""
    given = data or os.environ.get(VARIABLE) or BUNDLED
    return FIXTURES / "instances.jsonl" if given == BUNDLED else Path(given).expanduser()


@lru_cache(maxsize=4)
def load(path: Path) -> tuple[Instance, ...]:
    """Return the tasks in a file of JSON lines (``.jsonl``) or Parquet (``.parquet``), in its order.

    Raises:
        ValueError: If the file is missing or malformed.
    """
    if path.suffix not in (".jsonl", ".parquet") or not path.is_file():
        raise ValueError(f"data must be an existing file *.jsonl or *.parquet with SWE-bench's rows, got {str(path)!r}")
    instances = tuple(map(parse_row, read_rows(path)))
    if len({instance.instance_id for instance in instances}) < max(len(instances), 1):
        raise ValueError(f"{path} has no rows, or two with the same instance_id")
    return instances


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file without checking them.

    Raises:
        ValueError: If a line is no JSON object.
    """
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return pq.read_table(path).to_pylist()
    with path.open("rb") as lines:
        return [row for _, row in objects_of(path, lines)]


def tasks_of(split: str, data: str | None, held_out: float) -> list[Instance]:
    """Return the tasks of a split, in an order that depends on their names alone.

    Args:
        split: ``train`` or ``val``.
        data: See ``data_file``.
        held_out: Share of the tasks that belong to ``val``, in [0, 1]; with 0 both splits have all tasks.

    Raises:
        ValueError: If an argument is out of range or the split has no tasks.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; known: {', '.join(SPLITS)}")
    if not 0 <= held_out <= 1:
        raise ValueError(f"held_out must be in [0, 1], got {held_out!r}")
    path = data_file(data)
    # Sorted by a hash of the name, so that the split does not depend on the order of the rows in the file.
    instances = sorted(load(path), key=lambda instance: hashlib.sha256(instance.instance_id.encode()).digest())
    cut = round(held_out * len(instances))
    # Without held-out tasks an evaluation is one of the tasks that are trained on, as in the paper.
    chosen = instances[:cut] if split == "val" and held_out else instances[cut:]
    if not chosen:
        raise ValueError(f"{path} has {len(instances)} tasks, with held_out={held_out} none of them is in {split!r}")
    return chosen
