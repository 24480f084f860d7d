"""``comprl doctor``: every check runs, and a failing one is exit code 1."""

import importlib.metadata
import importlib.util

import pytest

from verl_comprl.cli import doctor
from verl_comprl.cli.main import main


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    # The command sets them where they are not set; here they must not outlive the test.
    for name in ("VERL_LOGGING_LEVEL", "VLLM_LOGGING_LEVEL", "PYTHONWARNINGS"):
        monkeypatch.setenv(name, "ERROR" if name != "PYTHONWARNINGS" else "ignore")


def test_this_installation_is_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert code == 0, lines
    checked = [line.removeprefix("ok    ").partition(":")[0] for line in lines if line.startswith("ok    ")]
    assert checked == ["verl", "registration", "device", "vllm", "embedder", "environments"]
    assert any(line.startswith("ok    environments: ") and "minihack" in line for line in lines)


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
    monkeypatch.setattr(importlib.metadata, "version", version_without_vllm)
    monkeypatch.setattr(doctor, "entry_points", lambda group: [])
    checks = {name: doctor.CHECKS[name] for name in ("registration", "vllm", "embedder")}
    monkeypatch.setattr(doctor, "CHECKS", checks)
    assert main(["doctor"]) == 1
    registration, vllm, embedder, _ = capsys.readouterr().out.splitlines()
    assert registration.startswith("FAIL  registration:") and "pip install -e ." in registration
    assert vllm.startswith("FAIL  vllm:") and "verl-comprl[gpu]" in vllm
    assert embedder == "FAIL  embedder: sentence-transformers is missing: pip install 'verl-comprl[embed]'"


def test_without_a_gpu_the_cpu_has_to_be_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch
    import verl.plugin.platform as platform

    class Cuda:
        device_name = "cuda"

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(platform, "get_platform", Cuda)
    monkeypatch.setattr(doctor, "CHECKS", {"device": doctor.CHECKS["device"]})
    assert main(["doctor"]) == 1
    assert "no GPU is visible: to run on the CPU, set VERL_PLATFORM=cpu" in capsys.readouterr().out
