"""The table of known failure modes in the documentation names tests that exist."""

import re
from pathlib import Path

HERE = Path(__file__).parent
ROWS = re.findall(r"^\| (.+?) \| `(.+?)::(.+?)` \|$", (HERE.parents[1] / "docs/experience_bank.md").read_text(), re.M)


def test_every_failure_mode_has_its_test() -> None:
    assert len(ROWS) >= 27
    for mode, file, name in ROWS:
        assert re.search(rf"^(async )?def {name}\(", next(HERE.rglob(file)).read_text(), re.M), (
            f"{mode}: {file}::{name}"
        )
