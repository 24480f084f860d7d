"""Overrides of runs that train adapters, and how exactly their servers compute what the engine does."""

from collections.abc import Sequence

RANK = 8


def lora(*, merge: bool) -> list[str]:
    """Overrides; adapters need a higher learning rate than full weights."""
    overrides = []
    for model in ("actor_rollout_ref", "extractor"):
        overrides += [f"{model}.model.lora_rank={RANK}", f"{model}.model.lora_alpha=16"]
        overrides += [f"{model}.model.lora.merge={str(merge).lower()}", f"{model}.rollout.load_format=safetensors"]
        overrides += [f"{model}.actor.optim.lr=0.01"]
    return overrides


def tolerance(overrides: Sequence[str]) -> float:
    """Largest difference of a log-prob: verl 0.9.1 sends merged weights as bfloat16, whatever the servers' type."""
    return 0.05 if any(override.endswith("lora.merge=true") for override in overrides) else 1e-4
