"""Replaces a file of a snapshot and its checksum, as an attacker would."""

import hashlib
import json
from pathlib import Path


def forge(folder: Path, name: str, data: bytes) -> None:
    (folder / name).write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["sha256"][name] = hashlib.sha256(data).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
