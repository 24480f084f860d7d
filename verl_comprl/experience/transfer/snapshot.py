"""Writes and reads snapshots: a whole bank as a folder with checksums, which is also a Hugging Face dataset.

Owns the folder: ``README.md``, ``data/entries.parquet``, ``vectors.safetensors`` (tensor ``vectors``, rows in the order
of the entries) and ``manifest.json``, written last. A folder that does not match its manifest is refused. The table's
columns and the card are in ``hf_dataset``.
"""

import hashlib
import json
import math
import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from verl_comprl.display.first_line import first_line
from verl_comprl.experience.embedding.base import embedding_difference, is_identity
from verl_comprl.experience.schema import READABLE_VERSIONS, SCHEMA_VERSION, Experience
from verl_comprl.experience.transfer.hf_dataset import ENTRIES_FILE, card, from_parquet, to_parquet
from verl_comprl.files import sync_folder, write_atomically

HUB_PREFIX = "hf://datasets/"

_CARD, _VECTORS, _MANIFEST = "README.md", "vectors.safetensors", "manifest.json"
_VERIFIED = (ENTRIES_FILE, _VECTORS)  # people may edit the card
_OWN = {_CARD, ENTRIES_FILE, _VECTORS, _MANIFEST}
_LARGEST_MANIFEST = 2**20
"""Bytes."""
_SHOWN = 80
"""Characters of a value of a manifest, which may be anybody's."""


class SnapshotError(ValueError):
    """A snapshot is missing, incomplete or damaged, cannot be written, or belongs to another embedder or schema."""

    errno: int | None = None
    """Of the system's error, if one kept it from being written. Between processes the cause of an exception is lost."""


class Snapshot(NamedTuple):
    """Entries, their vectors (shape ``(count, dimension)``, float32), and the identity of their embedder."""

    entries: list[Experience]
    vectors: np.ndarray
    embedding: dict[str, Any]


def write_snapshot(folder: Path, entries: Sequence[Experience], vectors: np.ndarray, embedding: dict[str, Any]) -> None:
    """Write a snapshot to ``folder``; an existing one is replaced only when the new one is complete.

    Args:
        folder: Folder of the snapshot; its parents are created.
        entries: The entries, in the order to keep.
        vectors: Shape ``(len(entries), dimension)``, float32.
        embedding: Identity of the embedder, with its ``dimension``.

    Raises:
        SnapshotError: If the folder holds other files than a snapshot's, or cannot be written (disk full); an older
            snapshot is kept.
    """
    folder = Path(os.path.realpath(folder))  # resolve() raises RuntimeError for links in a circle
    building = _sibling(folder, "building")
    try:
        _recover(folder)
        _remove_leftovers(folder, "building")
        if foreign := set(_files(folder)) - _OWN:
            raise SnapshotError(
                f"snapshot folder {folder} holds other files ({min(foreign)}); choose an empty or a new folder"
            )
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
        # Last: a folder whose writing was interrupted has no manifest, and is refused as incomplete.
        write_atomically(building / _MANIFEST, json.dumps(manifest, indent=1).encode())
        _replace(folder, building)
    except OSError as error:
        shutil.rmtree(building, ignore_errors=True)
        failure = SnapshotError(f"snapshot {folder} could not be written: {error}")
        failure.errno = error.errno
        raise failure from error


def read_snapshot(folder: Path, embedding: dict[str, Any] | None) -> Snapshot:
    """Return the content of a snapshot.

    Args:
        folder: A folder that ``write_snapshot`` wrote.
        embedding: Identity of the embedder that will search the vectors; None accepts any.

    Raises:
        SnapshotError: If anything is missing, damaged, or was made with another embedder or schema.
    """
    folder = Path(os.path.realpath(folder))
    place = folder if folder.exists() else _set_aside(folder) or folder  # a crash in `_replace` can leave it there
    if not place.exists():
        raise SnapshotError(f"there is no snapshot {folder}; `comprl bank export` writes one")
    try:
        manifest = json.loads(_content(place, _MANIFEST, _LARGEST_MANIFEST))
        if manifest["schema_version"] not in READABLE_VERSIONS:
            raise SnapshotError(
                f"snapshot {folder} has schema version {manifest['schema_version']!r:.{_SHOWN}}, this release reads "
                f"{', '.join(map(str, READABLE_VERSIONS))}; use a newer release of verl-comprl"
            )
        stored = manifest["embedding"]
        if not is_identity(stored):
            raise SnapshotError(f"snapshot {folder} is incomplete or damaged: its manifest names no embedder")
        if embedding is not None and (difference := embedding_difference(stored, json.loads(json.dumps(embedding)))):
            raise SnapshotError(f"snapshot {folder} was made with another embedder: {difference}")
        files = {name: _content(place, name) for name in _VERIFIED}
        for name, data in files.items():
            if hashlib.sha256(data).hexdigest() != manifest["sha256"][name]:
                raise SnapshotError(f"snapshot {folder} is damaged: {name} does not have the checksum of its manifest")
        # The vectors first: they take real bytes, while a few of a compressed table can stand for millions of rows.
        vectors = load(files[_VECTORS])["vectors"]
        if vectors.ndim != 2 or len(vectors) != manifest["count"]:
            raise SnapshotError(
                f"snapshot {folder} should have {manifest['count']!r:.{_SHOWN}} entries, "
                f"its vectors have shape {vectors.shape}"
            )
        entries = from_parquet(files[ENTRIES_FILE], len(vectors))
        count, shape = manifest["count"], (manifest["count"], stored["dimension"])
    except SnapshotError:
        raise
    except FileNotFoundError as error:
        missing = Path(error.filename).relative_to(place)
        raise SnapshotError(f"snapshot {folder} is incomplete or damaged: it has no {missing}") from error
    except (OSError, KeyError, TypeError, ValueError, RecursionError, SafetensorError) as error:
        raise SnapshotError(f"snapshot {folder} is incomplete or damaged: {error!r}") from error
    if not len(entries) == len({entry.id for entry in entries}) == len(vectors) == count:
        raise SnapshotError(
            f"snapshot {folder} should have {count} entries, has {len(entries)} and {len(vectors)} vectors"
        )
    # Checksums detect accidents, not forgery; and one vector that is too long would win every search.
    if vectors.shape != shape or vectors.dtype != np.float32 or not (abs(_lengths(vectors) - 1) < 1e-3).all():
        raise SnapshotError(f"snapshot {folder} has vectors that are not normalised float32 of shape {shape}")
    return Snapshot(entries, vectors, stored)


def _content(folder: Path, name: str, most: float = math.inf) -> bytes:
    """Return what a file holds, which may be a link, as in a download.

    Args:
        folder: Of the snapshot.
        name: Of the file.
        most: Bytes.

    Raises:
        SnapshotError: If it is another kind of file, such as a device that has no end, or larger.
        OSError: If it cannot be read.
    """
    # Without waiting: nobody may ever write into a pipe.
    with open(folder / name, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > most:
            kind = f"has {found.st_size} bytes" if stat.S_ISREG(found.st_mode) else "is no regular file"
            raise SnapshotError(f"snapshot {folder} is incomplete or damaged: its {name} {kind}")
        return file.read()


def entries_checksum(entries: Sequence[Experience]) -> str:
    """Return the SHA-256 of entries with all their counters, as it stands in the manifest of their snapshot."""
    return hashlib.sha256(to_parquet(entries)).hexdigest()


def snapshot_folder(address: str) -> Path:
    """Return the folder of a snapshot: ``address`` itself, or the download of ``hf://datasets/<user>/<name>``.

    Raises:
        SnapshotError: If the address of a download has another form, or the download fails.
    """
    if not address.startswith("hf://"):
        return Path(address)
    from huggingface_hub import snapshot_download  # imported here: it takes 0.5 s, and few processes need it

    repository = address.removeprefix(HUB_PREFIX)
    if repository == address or repository.count("/") != 1:
        raise SnapshotError(f"a snapshot on the hub is named {HUB_PREFIX}<user>/<name>, got {address!r}")
    try:
        return Path(snapshot_download(repository, repo_type="dataset", allow_patterns=sorted(_OWN)))
    except (OSError, ValueError) as error:  # every exception of the hub's client derives from one of these
        raise SnapshotError(f"{address} could not be downloaded: {first_line(error)}") from error


def _files(folder: Path) -> Iterator[str]:
    if folder.exists():
        for path in folder.iterdir():
            yield from ([f"data/{inner.name}" for inner in path.iterdir()] if path.name == "data" else [path.name])


def _lengths(vectors: np.ndarray) -> np.ndarray:
    return np.linalg.norm(vectors, axis=1)


def _sibling(folder: Path, purpose: str) -> Path:
    """Return an unused sibling name of ``folder``; a fixed one might already exist."""
    return folder.with_name(f".{folder.name}.{purpose}-{uuid.uuid4().hex}")


def _siblings(folder: Path, purpose: str) -> list[Path]:
    """Return what a crash left next to ``folder``: only names of our form that hold nothing but a snapshot's files."""
    pattern = re.compile(rf"\.{re.escape(folder.name)}\.{purpose}-[0-9a-f]{{32}}")
    near = folder.parent.iterdir() if folder.parent.exists() else ()
    ours = {name for own in _OWN for name in (own, f"{own}.tmp")}
    return sorted(path for path in near if pattern.fullmatch(path.name) and ours.issuperset(_files(path)))


def _set_aside(folder: Path) -> Path | None:
    """Return the snapshot that a replacement of ``folder`` had moved aside when it was interrupted."""
    return next((path for path in _siblings(folder, "replaced") if (path / _MANIFEST).exists()), None)


def _remove_leftovers(folder: Path, purpose: str) -> None:
    for path in _siblings(folder, purpose):
        shutil.rmtree(path, ignore_errors=True)


def _recover(folder: Path) -> None:
    """Finish or undo a replacement that a crash interrupted."""
    aside = _set_aside(folder)
    if aside and not folder.exists():
        aside.rename(folder)
    _remove_leftovers(folder, "replaced")


def _replace(folder: Path, new: Path) -> None:
    """Replace ``folder`` by ``new``."""
    # Two renames, because a rename onto a folder that is not empty fails. After a crash between them the old snapshot
    # is at a name of `_sibling`, where `read_snapshot` finds it and from where `_recover` moves it back.
    aside = _sibling(folder, "replaced")
    if folder.exists():
        folder.rename(aside)
    try:
        new.rename(folder)
    except OSError:
        _recover(folder)
        raise
    sync_folder(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)
