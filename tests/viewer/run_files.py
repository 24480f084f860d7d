"""Files of runs and blocks of the page in tests: what they hold, and copies in which something is changed."""

import base64
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from verl_comprl.record import RunRecord
from verl_comprl.viewer.blocks import Block

Record = dict[str, Any]


def unpack(block: Block) -> Any:
    """What a block of the page holds."""
    return json.loads(gzip.decompress(base64.b64decode(block.text, validate=True)))


def written_entries(run: Path) -> dict[str, Record]:
    """The events that wrote a run's entries, by entry."""
    return {event["entry"]: event for event in RunRecord(run).events() if event["event"] in ("written", "merged")}


def copy_changed(run: Path, folder: Path, files: str, change: Callable[[Record], Record | None]) -> None:
    """Copy files of a run, each line as ``change`` returns it; None leaves it out."""
    for file in run.glob(files):
        text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        lines = [line for line in map(change, map(json.loads, text.splitlines())) if line is not None]
        done = "".join(json.dumps(line) + "\n" for line in lines).encode()
        copy = folder / file.relative_to(run)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(gzip.compress(done) if file.suffix == ".gz" else done)
