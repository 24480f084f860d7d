"""The bank as three files that can be moved, read and verified.

Owns the format: ``entries.jsonl``, ``vectors.safetensors`` (tensor ``vectors``, rows in the order of the entries) and
``manifest.json``, written last. A folder without a manifest, or one that does not fit it, is refused.
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from verl_comprl.experience.embedding import embedding_difference
from verl_comprl.experience.folder import write_atomically
from verl_comprl.experience.schema import SCHEMA_VERSION, Experience

_ENTRIES, _VECTORS, _MANIFEST = "entries.jsonl", "vectors.safetensors", "manifest.json"


class SnapshotError(ValueError):
    """A snapshot is incomplete, damaged, or of another kind than asked for."""


def write_snapshot(folder: Path, entries: Sequence[Experience], vectors: np.ndarray, embedding: dict[str, Any]) -> None:
    """Write a snapshot to ``folder``; one that is there already is replaced only once the new one is complete.

    Raises:
        SnapshotError: If the folder holds anything that is not a snapshot's.
    """
    strangers = {path.name for path in folder.iterdir()} - {_ENTRIES, _VECTORS, _MANIFEST} if folder.exists() else set()
    if strangers:
        raise SnapshotError(
            f"snapshot folder {folder} holds other files ({min(strangers)}); choose a folder of its own"
        )
    files = {
        _ENTRIES: "".join(f"{entry.model_dump_json()}\n" for entry in entries).encode(),
        _VECTORS: save({"vectors": np.ascontiguousarray(vectors)}),
    }
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "count": len(entries),
        "embedding": embedding,
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }
    building = folder.with_name(f"{folder.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    for name, data in files.items():
        write_atomically(building / name, data)
    write_atomically(building / _MANIFEST, json.dumps(manifest, indent=1).encode())
    if folder.exists():
        shutil.rmtree(folder)
    building.rename(folder)


def read_snapshot(folder: Path, embedding: dict[str, Any]) -> tuple[list[Experience], np.ndarray]:
    """Return the entries of a snapshot and their vectors, shape ``(count, dimension)`` float32.

    Args:
        folder: What ``write_snapshot`` wrote.
        embedding: Identity of the embedder that will search the vectors.

    Raises:
        SnapshotError: If anything is missing, damaged, or was made with another embedder or schema.
    """
    try:
        manifest = json.loads((folder / _MANIFEST).read_bytes())
        if manifest["schema_version"] != SCHEMA_VERSION:
            found = manifest["schema_version"]
            raise SnapshotError(f"snapshot {folder} has schema version {found}, this release reads {SCHEMA_VERSION}")
        if difference := embedding_difference(manifest["embedding"], json.loads(json.dumps(embedding))):
            raise SnapshotError(f"snapshot {folder} was made with another embedder: {difference}")
        files = {name: (folder / name).read_bytes() for name in (_ENTRIES, _VECTORS)}
        for name, data in files.items():
            if hashlib.sha256(data).hexdigest() != manifest["sha256"][name]:
                raise SnapshotError(f"snapshot {folder} is damaged: {name} does not have the checksum of its manifest")
        # Not splitlines: it also splits at separators that JSON leaves unescaped.
        entries = [Experience.model_validate_json(line) for line in files[_ENTRIES].split(b"\n") if line]
        vectors = load(files[_VECTORS])["vectors"]
    except SnapshotError:
        raise
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise SnapshotError(f"snapshot {folder} is incomplete or damaged: {error!r}") from error
    if not len(entries) == len({entry.id for entry in entries}) == len(vectors) == manifest["count"]:
        raise SnapshotError(
            f"snapshot {folder} should have {manifest['count']} entries, has {len(entries)} and {len(vectors)} vectors"
        )
    return entries, vectors
