"""Overrides of runs that train adapters."""

RANK = 8


def lora(*, merge: bool) -> list[str]:
    """Overrides; adapters need a higher learning rate than full weights."""
    overrides = []
    for model in ("actor_rollout_ref", "extractor"):
        overrides += [f"{model}.model.lora_rank={RANK}", f"{model}.model.lora_alpha=16"]
        overrides += [f"{model}.model.lora.merge={str(merge).lower()}", f"{model}.rollout.load_format=safetensors"]
        overrides += [f"{model}.actor.optim.lr=0.01"]
    return overrides
