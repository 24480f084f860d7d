"""Writes the locks: every pin with the hashes of its files on PyPI, so that pip refuses any other file.

``python requirements/lock.py`` after a pin was changed; with names of locks, only these. Left out are files for other
platforms than Linux, and for Pythons that `make setup` refuses.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from packaging.requirements import Requirement
from packaging.tags import Tag
from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

ROOT = Path(__file__).parents[1]
LOCKS = {
    "requirements/cpu.lock": "requirements/cpu.txt",
    "requirements/audit.lock": "requirements/audit.txt",
    "requirements/backends.lock": "requirements/backends.txt",
    "recipes/smollm2/requirements.lock": "recipes/smollm2/requirements.txt",
}
"""Files of pins, by the lock that is made from each."""
INDEX = "https://pypi.org/simple"
INTERPRETERS = ("cp311", "cp312")
HEADER = "# Made by requirements/lock.py from {}, which says what is in it and why; do not edit.\n"


def pins(text: str) -> Iterator[Requirement]:
    """Yield the requirement ``name==version`` of each line, which may have a marker."""
    return (Requirement(wanted) for line in text.splitlines() if (wanted := line.partition("#")[0].strip()))


def fits(filename: str, version: Version) -> bool:
    """Return whether a file is of a version, and can be installed by a supported Python on Linux."""
    if not filename.endswith(".whl"):
        try:
            return parse_sdist_filename(filename)[1] == version
        except InvalidSdistFilename:  # an installer of another system
            return False
    _, of, _, tags = parse_wheel_filename(filename)
    return of == version and any(map(_runs, tags))


def _runs(tag: Tag) -> bool:
    linux = tag.platform == "any" or ("linux" in tag.platform and tag.platform.endswith(("x86_64", "aarch64")))
    python = tag.interpreter.startswith("py3") or tag.interpreter in INTERPRETERS
    return linux and (python or tag.abi == "abi3")


def locked(pinned: Requirement) -> str:
    """Return a line of the lock: a requirement with the sha256 of each file of its version.

    Raises:
        ValueError: If PyPI has none.
    """
    (pin,) = pinned.specifier
    version = Version(pin.version)
    address = f"{INDEX}/{canonicalize_name(pinned.name)}/"
    request = Request(address, headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    with urlopen(request, timeout=60) as answer:
        files: list[dict[str, Any]] = json.load(answer)["files"]
    found = sorted({file["hashes"]["sha256"] for file in files if fits(file["filename"], version)})
    if not found:
        raise ValueError(f"PyPI has no file of {pinned} for Linux")
    return " ".join([str(pinned), *(f"--hash=sha256:{digest}" for digest in found)])


def main(locks: Sequence[str]) -> None:
    """Write locks; one line for each package."""
    for lock in locks:
        pinned = ROOT / LOCKS[lock]
        with ThreadPoolExecutor(8) as threads:
            lines = list(threads.map(locked, pins(pinned.read_text(encoding="utf-8"))))
        (ROOT / lock).write_text(HEADER.format(pinned.name) + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:] or list(LOCKS))
