"""Checks of LoRA's settings: verl has two groups of them, of which its FSDP engine reads one and its servers both."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_comprl.config.groups import verl_settings

_READ = ("merge", "rank", "fully_sharded_loras")
"""Settings of ``model.lora`` that are read with the FSDP engine."""
_INSTEAD = {"alpha": "lora_alpha", "adapter_path": "lora_adapter_path"}
"""Those of ``model`` that the engine reads in their place, where they are not called the same."""


def adapter_mistakes(config: DictConfig) -> Iterator[str]:
    """Check that verl's FSDP engine and its servers see the adapter that the settings describe.

    The engine makes an adapter where ``model.lora_rank`` is above 0, as ``model.lora_alpha``, ``model.target_modules``
    and others next to them say. It ignores ``model.lora``, which is Megatron's, but for ``merge``; the servers take
    their rank from there first.

    Args:
        config: The run's config.
    """
    for subtree in ("actor_rollout_ref", "extractor"):
        model, strategy = config[subtree].model, config[subtree].actor.strategy
        lora: dict[str, Any] = OmegaConf.to_container(model.lora) if model.get("lora") else {}  # pyright: ignore[reportAssignmentType]
        rank, adapter = lora.get("rank") or 0, model.get("lora_rank") or 0
        if rank and not adapter:
            yield (
                f"{subtree}.model.lora.rank={rank} makes no adapter with {subtree}.actor.strategy={strategy}, which "
                f"would train all weights; use {subtree}.model.lora_rank={rank}"
            )
        elif rank and rank != adapter:
            yield f"{subtree}.model.lora.rank={rank} is not {subtree}.model.lora_rank={adapter}; leave it out"
        load = config[subtree].rollout.load_format
        if adapter and load == "dummy" and not lora.get("merge"):
            yield (
                f"{subtree}.rollout.load_format={load} with {subtree}.model.lora_rank={adapter}: the server must read "
                f"the weights that do not change itself; use {subtree}.rollout.load_format=safetensors"
            )
        if model.get("lora_adapter_path") and not adapter:
            yield (
                f"{subtree}.model.lora_adapter_path={model.lora_adapter_path} is not read without "
                f"{subtree}.model.lora_rank: all weights would be trained; set it to the adapter's rank"
            )
        for name, value in lora.items():
            if name not in _READ and value != _defaults().get(name):
                instead = _INSTEAD.get(name, name)
                remedy = f"use {subtree}.model.{instead}" if instead in model else "leave it out"
                yield f"{subtree}.model.lora.{name}={value} is not read with actor.strategy={strategy}; {remedy}"


@cache
def _defaults() -> dict[str, Any]:
    """Return verl's defaults of ``model.lora``."""
    return verl_settings()["actor_rollout_ref"]["model"]["lora"]
