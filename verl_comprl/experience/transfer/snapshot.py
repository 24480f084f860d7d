"""The bank as a folder that can be moved, read, verified, and published as a Hugging Face dataset.

Owns the folder: ``README.md``, ``data/entries.parquet``, ``vectors.safetensors`` (tensor ``vectors``, rows in the order
of the entries) and ``manifest.json``, written last. One that does not fit its manifest is refused. What the entries
look like as a dataset is ``dataset``'s.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from verl_comprl.experience.embedding.base import embedding_difference
from verl_comprl.experience.schema import SCHEMA_VERSION, Experience
from verl_comprl.experience.store.folder import sync_folder, write_atomically
from verl_comprl.experience.transfer.hf_dataset import ENTRIES_FILE, card, from_parquet, to_parquet

HUB_PREFIX = "hf://datasets/"

_CARD, _VECTORS, _MANIFEST = "README.md", "vectors.safetensors", "manifest.json"
_VERIFIED = (ENTRIES_FILE, _VECTORS)  # people may edit the card
_OWN = {_CARD, ENTRIES_FILE, _VECTORS, _MANIFEST}


class SnapshotError(ValueError):
    """A snapshot is incomplete, damaged, cannot be written, or is of another kind than asked for."""


class Snapshot(NamedTuple):
    """Entries, their vectors (shape ``(count, dimension)``, float32), and the identity of the embedder behind them."""

    entries: list[Experience]
    vectors: np.ndarray
    embedding: dict[str, Any]


def write_snapshot(folder: Path, entries: Sequence[Experience], vectors: np.ndarray, embedding: dict[str, Any]) -> None:
    """Write a snapshot to ``folder``; one that is there already is replaced only once the new one is complete.

    Args:
        folder: Its parents are created.
        entries: In the order to keep.
        vectors: Shape ``(len(entries), dimension)``, float32.
        embedding: Identity of the embedder, ``dimension`` among it.

    Raises:
        SnapshotError: If the folder holds anything that is not a snapshot's, or cannot be written (disk full); an
            older snapshot is still there.
    """
    folder = folder.resolve()
    building = _beside(folder, "building")
    try:
        _recover(folder)
        if strangers := set(_files(folder)) - _OWN:
            raise SnapshotError(
                f"snapshot folder {folder} holds other files ({min(strangers)}); choose a folder of its own"
            )
        shutil.rmtree(building, ignore_errors=True)
        (building / ENTRIES_FILE).parent.mkdir(parents=True)
        checksums = {}
        for name, data in (
            (ENTRIES_FILE, to_parquet(entries)),
            (_VECTORS, save({"vectors": np.ascontiguousarray(vectors, np.float32)})),
        ):
            write_atomically(building / name, data)
            checksums[name] = hashlib.sha256(data).hexdigest()
        write_atomically(building / _CARD, card(entries, embedding).encode())
        manifest = {
            "schema_version": SCHEMA_VERSION,
            "count": len(entries),
            "embedding": embedding,
            "sha256": checksums,
        }
        write_atomically(building / _MANIFEST, json.dumps(manifest, indent=1).encode())
        _replace(folder, building)
    except OSError as error:
        shutil.rmtree(building, ignore_errors=True)
        raise SnapshotError(f"snapshot {folder} could not be written: {error}") from error


def read_snapshot(folder: Path, embedding: dict[str, Any] | None) -> Snapshot:
    """Return the content of a snapshot.

    Args:
        folder: What ``write_snapshot`` wrote.
        embedding: Identity of the embedder that will search the vectors; None accepts any.

    Raises:
        SnapshotError: If anything is missing, damaged, or was made with another embedder or schema.
    """
    folder = folder.resolve()
    aside = _beside(folder, "replaced")
    place = aside if aside.exists() and not folder.exists() else folder  # a crash in _replace leaves it there
    try:
        manifest = json.loads((place / _MANIFEST).read_bytes())
        if manifest["schema_version"] != SCHEMA_VERSION:
            found = manifest["schema_version"]
            raise SnapshotError(f"snapshot {folder} has schema version {found}, this release reads {SCHEMA_VERSION}")
        stored = manifest["embedding"]
        if embedding is not None and (difference := embedding_difference(stored, json.loads(json.dumps(embedding)))):
            raise SnapshotError(f"snapshot {folder} was made with another embedder: {difference}")
        files = {name: (place / name).read_bytes() for name in _VERIFIED}
        for name, data in files.items():
            if hashlib.sha256(data).hexdigest() != manifest["sha256"][name]:
                raise SnapshotError(f"snapshot {folder} is damaged: {name} does not have the checksum of its manifest")
        entries = from_parquet(files[ENTRIES_FILE])
        vectors = load(files[_VECTORS])["vectors"]
        count, shape = manifest["count"], (manifest["count"], stored["dimension"])
    except SnapshotError:
        raise
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise SnapshotError(f"snapshot {folder} is incomplete or damaged: {error!r}") from error
    if not len(entries) == len({entry.id for entry in entries}) == len(vectors) == count:
        raise SnapshotError(
            f"snapshot {folder} should have {count} entries, has {len(entries)} and {len(vectors)} vectors"
        )
    # Checksums only tell of accidents: one long vector would come first in every search.
    if vectors.shape != shape or vectors.dtype != np.float32 or not (abs(_lengths(vectors) - 1) < 1e-3).all():
        raise SnapshotError(f"snapshot {folder} has vectors that are not normalised float32 of shape {shape}")
    return Snapshot(entries, vectors, stored)


def entries_checksum(entries: Sequence[Experience]) -> str:
    """Return the SHA-256 of entries with all their counters: the one that a snapshot of them has in its manifest."""
    return hashlib.sha256(to_parquet(entries)).hexdigest()


def snapshot_checksum(address: str) -> str:
    """Return :func:`entries_checksum` of the entries of a snapshot.

    Args:
        address: As for :func:`snapshot_folder`.

    Raises:
        SnapshotError: If there is none.
    """
    try:
        manifest = json.loads((snapshot_folder(address) / _MANIFEST).read_bytes())
        return manifest["sha256"][ENTRIES_FILE]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise SnapshotError(f"{address} is no snapshot: {error!r}") from error


def snapshot_folder(address: str) -> Path:
    """Return the folder of a snapshot: ``address`` itself, or where it lies if it is on the Hugging Face hub.

    Raises:
        SnapshotError: See ``hub_folder``.
    """
    return hub_folder(address) if address.startswith(HUB_PREFIX) else Path(address)


def hub_folder(address: str) -> Path:
    """Download the snapshot ``hf://datasets/<user>/<name>`` from the Hugging Face hub; return where it lies.

    Raises:
        SnapshotError: If the address is another, or cannot be downloaded.
    """
    from huggingface_hub import snapshot_download  # here, as few need it and it takes 0.5 s

    repository = address.removeprefix(HUB_PREFIX)
    if repository == address or repository.count("/") != 1:
        raise SnapshotError(f"a snapshot on the hub is named {HUB_PREFIX}<user>/<name>, got {address!r}")
    try:
        return Path(snapshot_download(repository, repo_type="dataset", allow_patterns=sorted(_OWN)))
    except (OSError, ValueError) as error:  # all that the hub's client raises derive from these
        reason = str(error).strip().split("\n")[0]
        raise SnapshotError(f"{address} could not be downloaded: {reason}") from error


def _files(folder: Path) -> Iterator[str]:
    if folder.exists():
        for path in folder.iterdir():
            yield from ([f"data/{inner.name}" for inner in path.iterdir()] if path.name == "data" else [path.name])


def _lengths(vectors: np.ndarray) -> np.ndarray:
    return np.linalg.norm(vectors, axis=1)


def _beside(folder: Path, purpose: str) -> Path:
    return folder.with_name(f"{folder.name}.{purpose}")


def _recover(folder: Path) -> None:
    """Undo, or finish, a replacement that a crash interrupted."""
    aside = _beside(folder, "replaced")
    if not folder.exists() and aside.exists():
        aside.rename(folder)
    shutil.rmtree(aside, ignore_errors=True)


def _replace(folder: Path, new: Path) -> None:
    """Put ``new`` in the place of ``folder``; at any moment one of the two is there or ``_recover`` can bring it."""
    aside = _beside(folder, "replaced")
    if folder.exists():
        folder.rename(aside)
    try:
        new.rename(folder)
    except OSError:
        _recover(folder)
        raise
    sync_folder(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)
