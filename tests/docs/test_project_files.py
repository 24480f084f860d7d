"""Workflows, pins and versions of the project agree with one another."""

import json
import re
import runpy
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import verl_comprl

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def steps(file: Path) -> list[dict[str, Any]]:
    return [step for job in yaml.safe_load(file.read_text())["jobs"].values() for step in job["steps"]]


def test_workflows_run_make_and_nothing_else() -> None:
    targets = set(re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = [step["run"].split() for file in WORKFLOWS for step in steps(file) if "run" in step]
    assert {command[1] for command in commands} >= {"audit", "docs", "long", "test"}
    assert all(command[0] == "make" and command[1] in targets for command in commands)


def test_only_the_jobs_that_publish_may_write() -> None:
    for file in WORKFLOWS:
        workflow = yaml.safe_load(file.read_text())
        assert workflow["permissions"] == {"contents": "read"}
        writing = {name for name, job in workflow["jobs"].items() if "write" in job.get("permissions", {}).values()}
        assert writing <= {"publish"}


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors", "license"} <= citation.keys()
    assert citation["version"] == verl_comprl.__version__


def test_the_tools_of_the_site_are_pinned_alike() -> None:
    wanted = re.findall(r"(mkdocs[\w-]*)(?:\[python\])?==([\d.]+)", (ROOT / "setup.py").read_text())
    locked = (ROOT / "requirements/cpu.txt").read_text().splitlines()
    assert len(wanted) == 2 and {f"{name}=={version}" for name, version in wanted} <= set(locked)


LOCKS = runpy.run_path(str(ROOT / "requirements/lock.py"))["LOCKS"]


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_has_hashes_of_every_pin_and_no_other_package(lock: str) -> None:
    pinned = (ROOT / LOCKS[lock]).read_text().splitlines()
    locked = [line for line in (ROOT / lock).read_text().splitlines() if line[:1] != "#"]
    wanted = [str(Requirement(line)) for line in pinned if line and line[:1] != "#"]
    assert [line.partition(" --hash=")[0] for line in locked] == wanted
    assert all(re.search(r"( --hash=sha256:[0-9a-f]{64})+$", line) for line in locked)


def test_whatever_a_command_installs_from_a_file_is_in_a_lock() -> None:
    commands = [
        line for name in ("Makefile", "requirements/audit.sh") for line in (ROOT / name).read_text().splitlines()
    ]
    installs = [line for line in commands if " install " in line and " -r " in line]
    assert len(installs) == 3 and all("--require-hashes --no-deps" in line for line in installs)
    assert {line.split(" -r ")[1] for line in installs} == LOCKS.keys() - {"requirements/cpu.lock"}  # install.sh has it


def test_the_setup_refuses_what_is_not_in_the_lock() -> None:
    script = (ROOT / "requirements/install.sh").read_text().replace("\\\n", "")
    from_lock = [line for line in script.splitlines() if " -r /dev/stdin" in line]
    assert len(from_lock) == 2 and all("--require-hashes" in line and "--no-deps" in line for line in from_lock)
    assert script.count("lock=requirements/cpu.lock") == 1


@pytest.mark.parametrize("tool", ["pip-licenses", "cyclonedx-py", "pip-audit"])
def test_the_audit_lists_licences_materials_and_vulnerabilities_with_pinned_tools(tool: str) -> None:
    assert f"$tools/{tool} " in (ROOT / "requirements/audit.sh").read_text()
    package = "cyclonedx-bom" if tool == "cyclonedx-py" else tool
    assert f"\n{package}==" in (ROOT / "requirements/audit.txt").read_text()


@pytest.mark.parametrize(("skipped", "found"), [(0, 0), (0, 1), (2, 0)])
def test_the_audit_counts_what_was_looked_up_and_goes_on(tmp_path: Path, skipped: int, found: int) -> None:
    """Its function that asks, with a pip-audit that has its answer already."""
    answer = json.dumps({"dependencies": [{"name": "a", "skip_reason": "b"}] * skipped + [{"name": "c", "vulns": []}]})
    stub = f"#!/bin/sh\nwhile [ $# -gt 1 ]; do shift; done\necho '{answer}' >$1\nexit {found}\n"
    (tmp_path / "pip-audit").write_text(stub)
    (tmp_path / "pip-audit").chmod(0o755)
    (tmp_path / "packages.txt").write_text("a==1\nb==1\nc==1\n")
    look_up = re.search(r"^look_up\(\) \{.*?^}", (ROOT / "requirements/audit.sh").read_text(), re.DOTALL | re.MULTILINE)
    assert look_up
    script = f"set -euo pipefail\ntools={tmp_path} status=0\n{look_up[0]}\nlook_up {tmp_path}\necho status $status"
    told = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout
    assert f"(pip-audit's status: {found}); {skipped} of 3 packages" in told and told.endswith(f"status {found}\n")


def test_the_audit_runs_once_a_week() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/audit.yml").read_text())
    (schedule,) = workflow[True]["schedule"]  # YAML 1.1 takes "on" for a boolean
    assert re.fullmatch(r"\d+ \d+ \* \* [0-6]", schedule["cron"])
    assert "make audit" in [step.get("run") for step in workflow["jobs"]["audit"]["steps"]]


def test_the_audit_looks_up_what_is_installed_with_torch_as_pypi_names_it(tmp_path: Path) -> None:
    runpy.run_path(str(ROOT / "requirements/audited.py"))["main"](tmp_path)
    listed = [Requirement(line) for line in (tmp_path / "packages.txt").read_text().splitlines()]
    installed = {canonicalize_name(each.metadata["Name"]) for each in metadata.distributions()}
    assert {requirement.name for requirement in listed} == installed - {"verl-comprl"}
    (torch,) = [requirement for requirement in listed if requirement.name == "torch"]
    assert "+" not in str(torch) and torch.specifier.contains(Version(metadata.version("torch")).public)


def test_the_audit_lists_the_licences_of_a_report_of_pip(tmp_path: Path) -> None:
    packages: list[dict[str, Any]] = [
        {"name": "verl-comprl", "version": "1", "license_expression": "Apache-2.0"},
        {"name": "Torch", "version": "2.11.0+cu130", "classifier": ["License :: OSI Approved :: BSD License"]},
        {"name": "long", "version": "1", "license": "MIT License\n\nPermission is hereby granted", "classifier": []},
        {"name": "kernels", "version": "0.1", "classifier": ["Operating System :: POSIX"]},
    ]
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"install": [{"metadata": package} for package in packages]}))
    runpy.run_path(str(ROOT / "requirements/audited.py"))["main"](tmp_path, report)
    assert (tmp_path / "packages.txt").read_text() == "kernels==0.1\nlong==1\ntorch==2.11.0\n"
    rows = json.loads((tmp_path / "licences.json").read_text())
    licences = {"verl-comprl": "Apache-2.0", "Torch": "BSD License", "long": "MIT License", "kernels": "UNKNOWN"}
    assert {row["Name"]: row["License"] for row in rows} == licences


def test_only_files_for_a_supported_python_on_linux_are_locked() -> None:
    lock = runpy.run_path(str(ROOT / "requirements/lock.py"))
    files = {
        "numpy-2.3.5-cp311-cp311-manylinux_2_28_x86_64.whl": True,
        "numpy-2.3.5-cp312-cp312-manylinux_2_28_aarch64.whl": True,
        "numpy-2.3.5.tar.gz": True,
        "numpy-2.3.5-py3-none-any.whl": True,
        "numpy-2.3.5-cp38-abi3-manylinux_2_28_x86_64.whl": True,
        "numpy-2.3.50.tar.gz": False,
        "numpy-2.3.4-py3-none-any.whl": False,
        "numpy-2.3.5-cp313-cp313-manylinux_2_28_x86_64.whl": False,
        "numpy-2.3.5-cp311-cp311-win_amd64.whl": False,
        "numpy-2.3.5-cp311-cp311-macosx_14_0_arm64.whl": False,
        "numpy-2.3.5.win32-py2.7.exe": False,
    }
    assert {name: lock["fits"](name, Version("2.3.5")) for name in files} == files


def test_copyleft_licences_are_named_and_come_with_extras_or_other_libraries() -> None:
    table = (ROOT / "docs/security.md").read_text()
    ours = metadata.requires("verl-comprl") or []
    required = {canonicalize_name(Requirement(line).name) for line in ours if "extra ==" not in line}
    pinned = (ROOT / "requirements/cpu.txt").read_text().splitlines()
    locked = [Requirement(line) for line in pinned if line and line[:1] != "#"]
    # Not every distribution that is found: setuptools, once imported, adds its own copies of some.
    for pin in (pin for pin in locked if pin.marker is None or pin.marker.evaluate()):
        package = metadata.distribution(pin.name)
        fields = [package.metadata["License-Expression"], package.metadata["License"]]
        # Some give the whole text, which may mention other licences further down.
        titles = [str(field)[:100] for field in fields] + (package.metadata.get_all("Classifier") or [])
        licence = " ".join(titles)
        name = canonicalize_name(package.metadata["Name"])
        if re.search(r"\b[AL]?GPL|GENERAL PUBLIC|General Public", licence):
            assert f"| {name} |" in table and name not in required, name
        if re.search(r"\bMPL|Mozilla Public|Proprietary", licence):
            assert name in table, name
