"""Arms of the miniature as Hydra overrides."""

from pathlib import Path

ARMS: dict[str, tuple[str, ...]] = {
    "baseline": ("arm=baseline",),
    "static_online": ("arm=static_online",),
    "offline": ("arm=offline",),
    "experience_only": ("arm=experience_only",),
    "complementary": ("arm=complementary",),
    "self_distillation": ("arm=self_distillation",),
    "self_imitation": ("arm=self_imitation",),
    "shared_baseline": ("arm=shared_baseline",),
    "all_guided": ("arm=all_guided",),
    "no_merge": ("arm=no_merge",),
    "no_search_and_ask": ("arm=no_search_and_ask",),
}
"""``self_imitation`` is a baseline that imitates its own successes: the control of ``self_distillation``."""

MECHANISM_ARMS = ("no_merge", "no_search_and_ask")
"""Arms that differ from ``complementary`` only where models merge and ask."""

FILLING_STEPS = 12
"""Steps in which the warm-started pair fills the bank of ``offline``, without learning."""


def filling() -> tuple[str, ...]:
    """Return the overrides of the run that fills the bank of ``offline``."""
    return (
        "arm=static_online",
        "actor_rollout_ref.actor.optim.lr=0.0",
        f"trainer.total_training_steps={FILLING_STEPS}",
    )


def initial_bank(folder: Path) -> str:
    """Return the override by which ``offline`` starts with the bank of a run that ``filling`` describes."""
    return f"comprl.initial_bank={folder}/global_step_{FILLING_STEPS}/comprl/bank"
