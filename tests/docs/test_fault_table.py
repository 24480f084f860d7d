"""The table of single faults in docs/reliability.md names tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = re.findall(r"^\| (.+?) \| .+ \| `(.+?)::(.+?)` \|$", (ROOT / "docs/reliability.md").read_text(), re.M)


def test_the_table_is_read() -> None:
    assert len(ROWS) >= 22


@pytest.mark.parametrize(("fault", "file", "name"), ROWS, ids=[fault for fault, _, _ in ROWS])
def test_a_fault_has_its_test(fault: str, file: str, name: str) -> None:
    assert re.search(rf"^(async )?def {name}\(", (ROOT / "tests" / file).read_text(), re.M), f"{fault}: {file}::{name}"
