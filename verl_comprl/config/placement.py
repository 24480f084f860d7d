"""Checks of where the extractor runs (``comprl.extractor.placement``)."""

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig

from verl_comprl.config.trainer_mode import is_separate
from verl_comprl.config.tree import ComprlConfig
from verl_comprl.config.weight_transfer import transfer_mistakes
from verl_comprl.platform.detection import uses_cpu

_LARGEST_SHARE = 0.95
"""Of a GPU's memory, for the servers of both models; the rest is for contexts and buffers of other processes."""


def placement_mistakes(config: DictConfig, comprl: ComprlConfig) -> Iterator[str]:
    """Yield a line for each setting that contradicts the placement."""
    if comprl.shares_slots:
        yield from _shared(config)
    elif comprl.extractor.placement == "split":
        yield from _split(config)
        yield from _adapter("extractor", config, "comprl.extractor.placement=split")


def _shared(config: DictConfig) -> Iterator[str]:
    if is_separate(config):
        yield (
            f"comprl.extractor.placement=shared needs a trainer whose servers pause while it trains, but "
            f"trainer.v1.trainer_mode={config.trainer.v1.trainer_mode}; allowed: comprl_sync, comprl_colocate_async"
        )
    if uses_cpu():
        return  # where memory is not divided between servers and engines
    actor, extractor = config.actor_rollout_ref.rollout, config.extractor.rollout
    for name, rollout in (("actor_rollout_ref", actor), ("extractor", extractor)):
        if not rollout.free_cache_engine:
            yield (
                f"{name}.rollout.free_cache_engine=False, but with comprl.extractor.placement=shared its server must "
                "give its memory back while its model is trained; use true"
            )
    share = actor.gpu_memory_utilization + extractor.gpu_memory_utilization
    if share > _LARGEST_SHARE:
        yield (
            f"comprl.extractor.placement=shared: the servers of both models would take {share:.2f} of a GPU's memory "
            f"(actor_rollout_ref.rollout.gpu_memory_utilization={actor.gpu_memory_utilization} + "
            f"extractor.rollout.gpu_memory_utilization={extractor.gpu_memory_utilization}); at most {_LARGEST_SHARE}"
        )


def _split(config: DictConfig) -> Iterator[str]:
    rollout = config.extractor.rollout
    for name in ("nnodes", "n_gpus_per_node"):
        if rollout[name] < 1:
            yield (
                f"extractor.rollout.{name}={rollout[name]}, but with comprl.extractor.placement=split the servers "
                "have slots of their own; it must be at least 1"
            )
    yield from transfer_mistakes(config, "extractor")
    engine, actor = rollout.checkpoint_engine, config.actor_rollout_ref.rollout.checkpoint_engine
    if engine.backend == "nccl" and not _nccl(engine).get("rebuild_group"):
        yield (
            "extractor.rollout.checkpoint_engine.engine_kwargs.nccl.rebuild_group must be true with "
            "comprl.extractor.placement=split: in a group that is kept, no weights can be sent any more once a "
            "server has died (on the command line with + before the name)"
        )
    if engine.backend == actor.backend == "nccl" and is_separate(config) and _group(engine) == _group(actor):
        yield (
            "extractor.rollout.checkpoint_engine.engine_kwargs.nccl.group_name must differ from the actor's "
            f"({_group(actor)!r}): both models would meet in one group"
        )


def separate_adapter_mistakes(config: DictConfig) -> Iterator[str]:
    """Check LoRA of the actor where its servers have slots of their own."""
    if is_separate(config):
        yield from _adapter("actor_rollout_ref", config, "comprl_separate_async")


def _adapter(subtree: str, config: DictConfig, reason: str) -> Iterator[str]:
    """Check that adapters are merged: verl sends servers in other processes whole weights only."""
    lora = config[subtree].model.get("lora") or {}
    rank = lora.get("rank") or config[subtree].model.get("lora_rank") or 0
    if rank > 0 and not lora.get("merge"):
        yield (
            f"{subtree}.model.lora.merge=False cannot be combined with {reason}: adapters only reach servers in the "
            "engine's own processes; use true"
        )


def _group(engine: DictConfig) -> str:
    return _nccl(engine).get("group_name", "default")


def _nccl(engine: DictConfig) -> Mapping[Any, Any]:
    return (engine.get("engine_kwargs") or {}).get("nccl") or {}
