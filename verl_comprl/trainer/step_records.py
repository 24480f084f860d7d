"""JSON Lines files in the run's folder whose lines have a ``step``, as a run finds them at its start."""

import json
import time
from pathlib import Path


def begin_records(file: Path, step: int) -> None:
    """Keep the lines of a run that continues after ``step``; if there are others, the whole file is set aside first.

    Args:
        file: May be missing.
        step: Of the checkpoint from which the run continues; -1 for a new run.
    """
    if not file.exists():
        return
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["step"] <= step]
    if len(kept) < len(lines):
        file.rename(file.with_stem(f"{file.stem}-{time.strftime('%Y%m%d-%H%M%S')}"))
        file.write_text("".join(kept), encoding="utf-8")
