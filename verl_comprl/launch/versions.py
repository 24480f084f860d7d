"""Versions that must be equal on all nodes: of Python, of the libraries, and of our own source."""

import hashlib
import platform
from pathlib import Path

from verl_comprl.requirements import version_of

_PACKAGES = ("env_adapters", "verl_comprl")
_LIBRARIES = ("verl", "ray", "torch", "vllm", "TransferQueue", "verl-comprl")
SOURCE = "source of verl_comprl and env_adapters"
"""Name under which the digest of their files is reported."""
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
    """Return a digest of the packages' files, data included: a checkout's version number says little."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for package in _PACKAGES:
        for file in sorted((root / package).rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:12]
