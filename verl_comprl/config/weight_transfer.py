"""Checks of how weights reach servers in other processes, which verl looks at only when both models have started."""

import os
from collections.abc import Iterator

from omegaconf import DictConfig

from verl_comprl.names import GLOO_ENGINE
from verl_comprl.platform.detection import uses_cpu

_GLOO_MODULE = "verl_comprl.platform.gloo_engine"
_OF_DEVICES = ("nccl", "nixl", "kimi_ckpt_engine", "mooncake", "delta_sharded")
"""verl's engines that send from device to device, as they are registered; none can be imported without one."""


def transfer_mistakes(config: DictConfig, subtree: str) -> Iterator[str]:
    """Yield a line for each setting with which a model's engine cannot send weights to servers elsewhere.

    Args:
        config: The run's config.
        subtree: The model, ``actor_rollout_ref`` or ``extractor``.
    """
    name, engine = f"{subtree}.rollout.checkpoint_engine", config[subtree].rollout.checkpoint_engine
    if engine.backend == "naive":
        yield (
            f"{name}.backend=naive cannot reach servers elsewhere; use nccl, or "
            f"{GLOO_ENGINE} with custom_backend_module={_GLOO_MODULE}"
        )
    elif engine.backend in _OF_DEVICES and uses_cpu():
        yield (
            f"{name}.backend={engine.backend} needs accelerators, and this run is on the CPU; use {GLOO_ENGINE} with "
            f"custom_backend_module={_GLOO_MODULE}"
        )
    elif engine.backend == "delta_sharded" and subtree == "extractor":
        yield f"{name}.backend=delta_sharded is for servers of the actor only; use nccl"
    elif not (
        engine.backend in (*_OF_DEVICES, GLOO_ENGINE)
        or engine.get("custom_backend_module")
        or os.environ.get("VERL_USE_EXTERNAL_MODULES")  # verl imports these in every process; they may register it
    ):
        yield (
            f"{name}.backend={engine.backend} is unknown; allowed: {', '.join((*_OF_DEVICES, GLOO_ENGINE))}, or one of "
            "your own with custom_backend_module"
        )
    elif engine.backend == GLOO_ENGINE and engine.get("custom_backend_module") != _GLOO_MODULE:
        yield (
            f"{name}.custom_backend_module={engine.get('custom_backend_module')} must be {_GLOO_MODULE} with "
            f"backend={GLOO_ENGINE}"
        )
