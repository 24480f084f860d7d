"""Workflows, pins and versions of the project agree with one another."""

import re
from pathlib import Path
from typing import Any

import yaml

import verl_comprl

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def steps(file: Path) -> list[dict[str, Any]]:
    return [step for job in yaml.safe_load(file.read_text())["jobs"].values() for step in job["steps"]]


def test_workflows_run_make_and_nothing_else() -> None:
    targets = set(re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = [step["run"].split() for file in WORKFLOWS for step in steps(file) if "run" in step]
    assert len(WORKFLOWS) == 3 and sorted(command[1] for command in commands) == ["dist", "docs", "test"]
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
