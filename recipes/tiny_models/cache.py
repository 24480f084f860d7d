"""Cache of prepared models: a folder is made once and kept until a source file changes."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

STAMP = "prepared.json"
SOURCES = (
    "recipes/tiny_models",
    "verl_comprl/experience/schema.py",
    "verl_comprl/extractor/prompts",
    "verl_comprl/rollout/messages.py",
    "verl_comprl/rollout/tool_schema.py",
)
"""What every recipe's models depend on."""


def fingerprint(sources: Sequence[str]) -> str:
    """Return a hash of ``SOURCES`` and a recipe's own source files, relative to the repository."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for source in (*SOURCES, *sources):
        for path in sorted((root / source).rglob("*")) or [root / source]:
            if path.suffix in (".py", ".txt"):
                digest.update(path.relative_to(root).as_posix().encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def cached(output: Path, sources: Sequence[str], make: Callable[[Path], None], name: str) -> bool:
    """Make a folder unless it is up to date; one that is not is replaced only once the new one is finished.

    Args:
        output: The folder.
        sources: Source files and folders that its content depends on besides ``SOURCES``.
        make: Creates the folder given, next to ``output``, and fills it. What it has written stays if it fails.
        name: What the folder holds, for the line printed if it is up to date.

    Returns:
        Whether it was made now.

    Raises:
        SystemExit: If the folder cannot be written or has files of others; says so before anything is made.
    """
    # Before the making: a source file that changes meanwhile must not count as included.
    wanted = fingerprint(sources)
    stamp = output / STAMP
    if stamp.exists() and json.loads(stamp.read_text())["fingerprint"] == wanted:
        print(f"{name}: prepared already, in {output}")
        return False
    temporary = output.with_name(f"{output.name}.part-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    _check_writable(output, temporary)
    make(temporary)
    (temporary / STAMP).write_text(json.dumps({"fingerprint": wanted}))
    shutil.rmtree(output, ignore_errors=True)
    temporary.rename(output)
    return True


def _check_writable(output: Path, temporary: Path) -> None:
    """Make and remove ``temporary``: otherwise a wrong path would be found only after minutes of training."""
    if output.exists() and not output.is_dir():
        raise SystemExit(f"error: {output} is a file; give the path of a folder")
    if output.exists() and any(output.iterdir()) and not (output / STAMP).exists():
        raise SystemExit(f"error: {output} has other files, which would be lost; give another folder")
    try:
        temporary.mkdir(parents=True)
        temporary.rmdir()
    except OSError as error:
        raise SystemExit(f"error: the folder {output} cannot be made: {error.strerror}; give another path") from error
