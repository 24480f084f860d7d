"""Versions that must be equal on all nodes: of Python, of the libraries, and of this package's source."""

import hashlib
import platform
from pathlib import Path

from verl_comprl.requirements import version_of

_LIBRARIES = ("verl", "ray", "torch", "vllm", "TransferQueue", "verl-comprl")
SOURCE = "source of verl_comprl"
"""Name under which the digest of this package's files is reported."""
MISSING = "none"
"""Version of what is not installed."""


def installed_versions() -> dict[str, str]:
    """Return this node's versions by name; ``MISSING`` for what is not installed."""
    versions = {library: version_of(library) or MISSING for library in _LIBRARIES}
    return {"Python": platform.python_version(), **versions, SOURCE: _source()}


def first_difference(here: dict[str, str], first: dict[str, str]) -> str:
    """Return the first difference to the first node's versions, or nothing."""
    for name, expected in first.items():
        if here.get(name) != expected:
            return f"{name} is {here.get(name)} here, but {expected} on the first node; install the same on all nodes"
    return ""


def _source() -> str:
    """Return a digest of the package's files: a checkout's version number says little."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:12]
