"""Rows of a prompt dataset for verl's ``RLHFDataset``.

Owns which seed stands at which index. Writing files is left to the caller.
"""

import json
from typing import Any

from env_adapters.minihack.variants import build_instructions, get_variant

SPLITS = ("train", "val")
_MAX_COUNT = 2**20
_MAX_SEED = 2**40


def build_rows(variant: str, split: str, count: int, *, seed: int = 0, max_turns: int = 30) -> list[dict[str, Any]]:
    """Build the rows of one split.

    Training episodes have even environment seeds and validation episodes odd ones, so that no choice of ``seed`` and
    ``count`` makes the splits meet. Different values of ``seed`` give different episodes.

    Args:
        variant: A key of ``env_adapters.minihack.variants.VARIANTS``.
        split: ``train`` or ``val``.
        count: Number of rows, at most 2**20.
        seed: Chooses the episodes, in [0, 2**40).
        max_turns: Turn limit of each episode.

    Returns:
        ``count`` rows; only ``extra_info`` differs between them.

    Raises:
        ValueError: If an argument is out of range.
    """
    task = get_variant(variant)
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; known: {', '.join(SPLITS)}")
    if not 1 <= count <= _MAX_COUNT:
        raise ValueError(f"count must be in [1, {_MAX_COUNT}], got {count}")
    if not 0 <= seed < _MAX_SEED:
        raise ValueError(f"seed must be in [0, {_MAX_SEED}), got {seed}")
    if max_turns < 1:
        raise ValueError(f"max_turns must be a positive integer, got {max_turns!r}")
    name = f"minihack/{variant}"
    options = json.dumps({"variant": variant, "max_turns": max_turns})
    prompt = [
        {"role": "system", "content": build_instructions(task, max_turns)},
        {"role": "user", "content": task.goal},
    ]
    first = seed * _MAX_COUNT
    return [
        {
            "data_source": name,
            "prompt": [dict(message) for message in prompt],
            "ability": "agent",
            "reward_model": {"style": "environment", "ground_truth": ""},
            "agent_name": "comprl_agent",
            "extra_info": {
                "index": index,
                "split": split,
                "environment": "minihack",
                "environment_options": options,
                "seed": env_seed,
                "task_id": f"{name}/{env_seed}",
            },
        }
        for index in range(count)
        for env_seed in [2 * (first + index) + SPLITS.index(split)]
    ]
