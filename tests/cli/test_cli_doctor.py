"""``comprl doctor``: every check runs, and a failing one is exit code 1."""

import importlib.metadata
import importlib.util
import os
import subprocess
import sys

import pytest

from verl_comprl.cli import doctor
from verl_comprl.cli.main import main


@pytest.mark.slow
def test_this_installation_passes_without_any_variable_and_without_a_warning() -> None:
    names = ("VERL_", "VLLM_", "PYTHONWARNINGS", "TRANSFORMERS_VERBOSITY")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    command = [sys.executable, "-m", "verl_comprl.cli.main", "doctor"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    checked = [line.removeprefix("ok    ").partition(":")[0] for line in lines if line.startswith("ok    ")]
    assert checked == ["verl", "plugin", "device", "inference", "embedder", "environments"]
    assert any(line.startswith("ok    environments: ") and "minihack" in line for line in lines)
    assert lines[-1] == "All checks passed." and len(lines) == 7


def test_a_failing_check_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> str:
        raise KeyError("the remedy")

    monkeypatch.setattr(doctor, "CHECKS", {"one": fail, "two": lambda: "fine", "three": fail})
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["FAIL  one: 'the remedy'", "ok    two: fine", "FAIL  three: 'the remedy'"]
    assert lines[3].startswith("2 of 3 checks failed")


def test_missing_parts_are_named_with_their_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec, version = importlib.util.find_spec, importlib.metadata.version

    def version_without_vllm(name: str) -> str:
        if name == "vllm":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "sentence_transformers" else find_spec(name)
    )
    monkeypatch.setattr(doctor, "version", version_without_vllm)
    monkeypatch.setattr(doctor, "entry_points", lambda group: [])
    checks = {name: doctor.CHECKS[name] for name in ("plugin", "inference", "embedder")}
    monkeypatch.setattr(doctor, "CHECKS", checks)
    assert main(["doctor"]) == 1
    plugin, inference, embedder, _ = capsys.readouterr().out.splitlines()
    assert plugin.startswith("FAIL  plugin:") and "pip install -e ." in plugin
    assert inference.startswith("FAIL  inference:") and "verl-comprl[gpu]" in inference
    assert embedder == "FAIL  embedder: sentence-transformers is missing: pip install 'verl-comprl[embed]'"


@pytest.mark.parametrize(
    ("available", "variables", "expected"),
    [
        (False, {"VERL_PLATFORM": "nvidia"}, "FAIL  device: verl expects cuda, but PyTorch finds none: unset VERL_P"),
        (False, {"RAY_ADDRESS": "10.0.0.1:6379"}, "ok    device: verl expects cuda on the Ray cluster 10.0.0.1:6379"),
        (True, {}, "ok    device: 8 x cuda"),
    ],
)
def test_a_gpu_that_is_expected(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    available: bool,
    variables: dict[str, str],
    expected: str,
) -> None:
    import torch
    import verl.plugin.platform as platform

    class Cuda:
        device_name = "cuda"

    monkeypatch.delenv("VERL_PLATFORM")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: available)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 8)
    monkeypatch.setattr(platform, "get_platform", Cuda)
    monkeypatch.setattr(doctor, "CHECKS", {"device": doctor.CHECKS["device"]})
    assert main(["doctor"]) == int(expected.startswith("FAIL"))
    assert capsys.readouterr().out.startswith(expected)


def test_a_machine_that_builds_for_another_is_not_asked_for_a_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("VERL_PLATFORM", raising=False)

    def fail() -> str:
        raise RuntimeError("no GPU")

    monkeypatch.setattr(doctor, "CHECKS", {"device": fail, "other": lambda: os.environ.get("VERL_PLATFORM", "none")})
    assert main(["doctor", "--without-device"]) == 0
    assert capsys.readouterr().out.splitlines() == ["ok    other: none", "All checks passed."]
