"""Lists packages for ``make audit``: those that are installed, or those of a report of ``pip install --report``.

``python requirements/audited.py FOLDER [REPORT]`` writes FOLDER/packages.txt, a line ``name==version`` for each, and
with a report FOLDER/licences.json in the form of pip-licenses. Versions are those that PyPI knows: without the label of
a build, such as torch's "+cpu".
"""

import json
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

OURS = "verl-comprl"


def pins(packages: Iterable[tuple[str, str]]) -> list[str]:
    """Return ``name==version`` of each package but ours, once, sorted."""
    named = {(canonicalize_name(name), Version(version).public) for name, version in packages}
    return sorted(f"{name}=={version}" for name, version in named if name != OURS)


def licence(metadata: Mapping[str, Any]) -> str:
    """Return the licence that a package states: an expression, else classifiers, else the first line of a text."""
    classifiers = [each.rpartition(" :: ")[2] for each in metadata.get("classifier", ()) if each[:7] == "License"]
    text = (metadata.get("license") or "").strip().partition("\n")[0]
    return metadata.get("license_expression") or "; ".join(classifiers) or text or "UNKNOWN"


def main(folder: Path, report: Path | None = None) -> None:
    """Write the lists."""
    folder.mkdir(parents=True, exist_ok=True)
    if report is None:
        packages = [(each.metadata["Name"], each.version) for each in distributions()]
    else:
        found = [each["metadata"] for each in json.loads(report.read_text(encoding="utf-8"))["install"]]
        packages = [(each["name"], each["version"]) for each in found]
        rows = [{"License": licence(each), "Name": each["name"], "Version": each["version"]} for each in found]
        rows.sort(key=lambda row: (row["License"], row["Name"]))
        (folder / "licences.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    (folder / "packages.txt").write_text("\n".join(pins(packages)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
