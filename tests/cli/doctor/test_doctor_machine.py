"""Ways in which a machine lacks what a run needs, and what the doctor says to each."""

import os
import resource
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from verl_comprl.cli.doctor import machine
from verl_comprl.platform import detection

GIB = 2**30


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_full_disk(doctor: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100 * GIB, 100 * GIB - 1000, 1000))
    finding = doctor("disk", f"trainer.default_local_dir={tmp_path}/run")
    assert finding["status"] == "failed" and f"{tmp_path}/run has 0.0 GiB free" in finding["message"]
    assert "trainer.default_local_dir=" in finding["remedy"]


@pytest.mark.parametrize(
    ("arguments", "looked_at"),
    [
        (["trainer.default_local_dir={tmp}/run"], False),  # the bank is in the run's folder
        (["trainer.default_local_dir={tmp}/run", "comprl.bank.path={tmp}/full/bank"], True),
        (["comprl.bank.path={tmp}/full/bank"], True),
        (["trainer.default_local_dir={tmp}/run", "comprl.bank.path={tmp}/full/bank", "arm=baseline"], False),
        (["comprl.bank.path={tmp}/full/bank", "comprl.bank.url=http://q", "comprl.bank.collection=c"], False),
        (["comprl.bank.path={tmp}/full/bank", "comprl.bank.capacity=0"], False),  # the settings' check says that
    ],
)
def test_a_bank_on_another_disk_that_is_full(
    arguments: list[str], looked_at: bool, doctor: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    full, empty = Usage(100 * GIB, 100 * GIB - 1000, 1000), Usage(100 * GIB, GIB, 99 * GIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full if path == tmp_path / "full" else empty)
    finding = doctor("disk", *(argument.format(tmp=tmp_path) for argument in arguments))
    assert finding["status"] == ("failed" if looked_at else "ok")
    if looked_at:
        assert finding["message"].startswith(f"the bank's folder {tmp_path}/full/bank has 0.0 GiB free")
        assert finding["remedy"] == "comprl.bank.path=FOLDER on another disk"


def test_a_folder_in_which_nothing_may_be_written(doctor: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def access(path: Path, mode: int) -> bool:  # root, as whom tests may run, may write everywhere
        assert mode == os.W_OK
        return path != tmp_path

    monkeypatch.setattr(os, "access", access)
    finding = doctor("disk", f"trainer.default_local_dir={tmp_path}/new/run")
    assert finding["status"] == "failed" and finding["remedy"].startswith("trainer.default_local_dir=")
    said = f"the run's folder {tmp_path}/new/run cannot be written: no permission for {tmp_path}"
    assert finding["message"] == said


def test_the_disk_of_a_folder_in_the_home_directory(
    doctor: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    measured: list[Path] = []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: measured.append(path) or Usage(100 * GIB, GIB, 99 * GIB))
    monkeypatch.setenv("RAY_TMPDIR", "~/ray")
    doctor("disk")
    assert measured[-1] == tmp_path / "home"


def test_disk_on_which_ray_stops_writing(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1000 * GIB, 960 * GIB, 40 * GIB))
    finding = doctor("disk")
    assert finding["status"] == "warning" and "96% full" in finding["message"] and "RAY_TMPDIR" in finding["remedy"]


def test_shared_memory_of_a_container(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(2**26, 0, 2**26))
    finding = doctor("shared memory")
    assert finding["status"] == "warning" and "64 MiB" in finding["message"] and "--shm-size" in finding["remedy"]


def test_ports_that_a_firewall_closes(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_own_address", lambda: "192.0.2.1")  # no address of this machine
    finding = doctor("ports")
    assert finding["status"] == "failed" and "192.0.2.1" in finding["message"]
    assert finding["remedy"].startswith("iptables -I INPUT -i lo -j ACCEPT")


@pytest.mark.parametrize(
    ("limit", "status"), [(1024, "failed"), (4095, "failed"), (4096, "ok"), (resource.RLIM_INFINITY, "ok")]
)
def test_too_few_open_files(limit: int, status: str, doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {resource.RLIMIT_NOFILE: (limit, resource.RLIM_INFINITY)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    finding = doctor("ports")
    assert finding["status"] == status
    if status == "failed":
        assert finding["message"] == f"a process may open {limit} files; Ray needs at least 4096"
        assert finding["remedy"] == "ulimit -n 65536"


DRIVER = "ubuntu-drivers install, or for a container docker run --gpus all"


@pytest.mark.parametrize(
    ("found", "variables", "status", "message", "remedy"),
    [
        (0, {"VERL_PLATFORM": "nvidia"}, "failed", "PyTorch finds none (VERL_PLATFORM=nvidia)", "unset VERL_PLATFORM"),
        (0, {"CUDA": "12.8"}, "failed", "PyTorch finds none: no driver", DRIVER),
        (0, {}, "failed", "is built without CUDA", "pip install --force-reinstall torch==2.11.0"),
        (0, {"RAY_ADDRESS": "10.0.0.1:6379"}, "skipped", "on the Ray cluster 10.0.0.1:6379; this machine has none", ""),
        (8, {}, "ok", "8 x cuda", ""),
    ],
)
def test_a_gpu_that_is_expected(
    doctor: Any,
    monkeypatch: pytest.MonkeyPatch,
    found: int,
    variables: dict[str, str],
    status: str,
    message: str,
    remedy: str,
) -> None:
    import torch
    import verl.plugin.platform as platform

    for name in ("VERL_PLATFORM", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    # Otherwise the CPU is chosen.
    monkeypatch.setattr(detection, "_is_installed", lambda build: build == "vllm")
    monkeypatch.setattr(torch.version, "cuda", variables.get("CUDA"))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: found > 0)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: found)
    monkeypatch.setattr(platform, "get_platform", lambda: SimpleNamespace(device_name="cuda"))
    finding = doctor("device")
    assert finding["status"] == status and message in finding["message"]
    assert finding["remedy"].startswith(remedy)
