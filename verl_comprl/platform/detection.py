"""Chooses the CPU if vLLM is the CPU's build, or if there is neither an accelerator nor the build for one.

For a CPU run it also fills in the settings and variables that verl, vLLM and Ray need.

Settings of the user are never changed. With ``RAY_ADDRESS`` set nothing is chosen: this machine may have no accelerator
while the cluster's workers have one; to use the CPUs of a cluster, set ``VERL_PLATFORM=cpu``.
"""

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

MODELS = ("actor_rollout_ref", "extractor")
"""Subtrees of the config that describe a model."""

CPU_DEFAULTS = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # several servers share the cores
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB per server
    # Compiled matrix products, one for each number of tokens in a batch: by default 1,024, or 650 MB in each server.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128",
}
"""Environment variables of a run on the CPU, unless the user has set them."""

VARIABLES = ("VERL_PLATFORM", *CPU_DEFAULTS)
"""Variables that :func:`select_platform` sets for this process and its workers."""

_CPUS_PER_SLOT = 16
"""Ray's CPUs are only counted: they may exceed the cores, and too few of them make verl wait forever."""


_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Names in /proc/cpuinfo of instructions that multiply matrices in bfloat16; the last is Arm's."""


def uses_cpu() -> bool:
    """Return whether verl runs on the CPU in this process and its workers."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"


def on_existing_cluster(ray_init: Mapping[Any, Any]) -> bool:
    """Return whether the run goes to a Ray cluster that others have started.

    Args:
        ray_init: ``ray_kwargs.ray_init`` of the config, whose address precedes ``RAY_ADDRESS``.
    """
    return (ray_init.get("address") or os.environ.get("RAY_ADDRESS") or "local") != "local"


def select_platform(*, cluster: bool | None = None) -> None:
    """Set the environment variables of a CPU run where there is no accelerator, or no vLLM that could use it.

    With vLLM's build for GPUs it is no CPU run, even if PyTorch sees no GPU, as with a driver that is too old: ``comprl
    doctor`` and the start then say that there is none, instead of a server that cannot start.

    Has to be called before verl is imported and before Ray is started, whose workers inherit the variables.

    Args:
        cluster: Whether the run is sent to an existing Ray cluster, for which nothing is chosen; None looks at
            ``RAY_ADDRESS``.
    """
    cluster = on_existing_cluster({}) if cluster is None else cluster
    is_cpu = _is_installed("vllm-cpu") or not (_has_accelerator() or _is_installed("vllm"))
    if not os.environ.get("VERL_PLATFORM") and not cluster and is_cpu:
        os.environ["VERL_PLATFORM"] = "cpu"
    if uses_cpu():
        for name, value in CPU_DEFAULTS.items():
            os.environ.setdefault(name, value)


def complete_config(config: Any, slots: int) -> None:
    """Fill in the servers' ``dtype`` and, for a CPU run, ``trainer.device`` and Ray's logical resources.

    Args:
        config: The run's config; changed in place.
        slots: Device slots that the run needs, one for each worker of a model.

    Raises:
        ValueError: If ``trainer.device`` contradicts the platform.
    """
    for subtree in MODELS:
        if config[subtree].rollout.dtype is None:
            config[subtree].rollout.dtype = server_dtype()
    device = config.trainer.device
    if not uses_cpu():
        if device == "cpu":
            raise ValueError("trainer.device=cpu: verl also needs the environment variable VERL_PLATFORM=cpu")
        return
    if device not in (None, "cpu"):
        raise ValueError(
            f"trainer.device={device}, but the run uses the CPU: PyTorch finds no accelerator, or VERL_PLATFORM=cpu is "
            "set; allowed: null or cpu"
        )
    config.trainer.device = "cpu"
    ray_init = config.ray_kwargs.ray_init
    if on_existing_cluster(ray_init):
        return  # an existing cluster has its own resources
    if ray_init.num_gpus is None:
        ray_init.num_gpus = slots
    if ray_init.num_cpus is None:
        ray_init.num_cpus = max(_CPUS_PER_SLOT * slots, cores())


def server_dtype() -> str:
    """Return the type in which this run's servers compute fast: bfloat16, or float32 on a processor without it."""
    return "bfloat16" if not uses_cpu() or _has_bf16() else "float32"


def slow_servers(config: Any) -> list[str]:
    """Return one line for each server of a CPU run whose type the processor has no instructions for."""
    if not uses_cpu() or _has_bf16():
        return []
    given = {f"{subtree}.rollout.dtype": config[subtree].rollout.dtype for subtree in MODELS}
    return [
        f"{name}={dtype}: this processor has no instructions for it, so the server will be slow; set float32, or "
        "null for what fits"
        for name, dtype in given.items()
        if dtype != "float32"
    ]


def _has_bf16() -> bool:
    try:
        words = set(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return False
    return bool(_BF16_FLAGS & words)


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def describe_cpu() -> str:
    """Return one line for the user of a run on the CPU."""
    if not _has_accelerator():
        reason = "PyTorch finds no GPU"
    else:
        reason = "vLLM's CPU build is installed" if _is_installed("vllm-cpu") else "VERL_PLATFORM=cpu is set"
    return f"{reason}: models and environments share {cores()} CPU cores, which is enough for small models only."


def _is_installed(vllm: Literal["vllm", "vllm-cpu"]) -> bool:
    """Return whether a build of vLLM is; the servers of the CPU's, which ``make setup`` installs, cannot use a GPU."""
    try:
        version(vllm)
    except PackageNotFoundError:
        return False
    return True


def _has_accelerator() -> bool:
    import torch

    return torch.accelerator.is_available()
