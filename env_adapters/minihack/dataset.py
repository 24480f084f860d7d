"""Dataset rows for MiniHack; needs no engine."""

from typing import Any

from env_adapters import dataset
from env_adapters.dataset import Task, split_seeds
from env_adapters.minihack.protocols import PROTOCOLS
from env_adapters.minihack.variants import build_instructions, compact, get_variant
from env_adapters.protocols import choose


def build_rows(
    variant: str, split: str, count: int, *, seed: int = 0, protocol: str = "paper", max_turns: int | None = None
) -> list[dict[str, Any]]:
    """Build the rows of one split.

    Args:
        variant: A key of ``env_adapters.minihack.variants.VARIANTS``.
        split: ``train`` or ``val``; their episodes are disjoint.
        count: Number of rows, at most 2**20.
        seed: Selects the episodes, in [0, 2**40).
        protocol: A key of ``env_adapters.minihack.protocols.PROTOCOLS``.
        max_turns: Turn limit of each episode.

    Returns:
        ``count`` rows; only ``extra_info`` differs between them.

    Raises:
        ValueError: If an argument is out of range.
    """
    rules, options = choose(PROTOCOLS, protocol, max_turns=max_turns, compact=None)
    chosen = get_variant(variant)
    actions = compact(chosen.actions) if options.pop("compact") else None
    name = f"minihack/{variant}"
    return dataset.build_rows(
        "minihack",
        name,
        [Task(number, f"{name}/{number}", chosen.goal) for number in split_seeds(split, count, seed=seed)],
        split=split,
        options={"variant": variant, "protocol": protocol, **options},
        instructions=rules.reword(build_instructions(chosen, options["max_turns"], actions)),
    )
