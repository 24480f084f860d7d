"""Builds dataset rows for verl's ``RLHFDataset`` and assigns environment seeds to splits.

Owns the row format and the split rule of all families: even seeds are training episodes and odd seeds are held out, so
the splits share no seed, whatever rows are built. Each family maps seeds to tasks; callers write the files.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

SPLITS = ("train", "val")
_MAX_COUNT = 2**20
_MAX_SEED = 2**40


@dataclass(frozen=True, slots=True)
class Task:
    """Task of one row: the seed for ``reset``, and the task id and goal that the environment reports for it."""

    seed: int
    task_id: str
    goal: str


def split_seeds(split: str, count: int, *, seed: int = 0) -> list[int]:
    """Return the environment seeds of ``count`` episodes of a split.

    Args:
        split: ``train`` or ``val``.
        count: At most 2**20.
        seed: Selects the episodes, in [0, 2**40); different values give disjoint sets of seeds.

    Raises:
        ValueError: If an argument is out of range.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; known: {', '.join(SPLITS)}")
    if not 1 <= count <= _MAX_COUNT:
        raise ValueError(f"count must be in [1, {_MAX_COUNT}], got {count}")
    if not 0 <= seed < _MAX_SEED:
        raise ValueError(f"seed must be in [0, {_MAX_SEED}), got {seed}")
    # Every dataset seed has its own block of _MAX_COUNT episodes, and parity selects the split: rows of different
    # seeds or splits never share an episode. The largest result is below 2**62, within the range of ``reset``.
    first = seed * _MAX_COUNT
    return [2 * (first + index) + SPLITS.index(split) for index in range(count)]


def split_of(seed: int) -> tuple[str, int]:
    """Return the split of an environment seed and the episode's number in it; the inverse of ``split_seeds``."""
    return SPLITS[seed % 2], seed // 2


def build_rows(
    environment: str,
    name: str,
    tasks: Iterable[Task],
    *,
    split: str,
    options: dict[str, Any],
    instructions: str,
) -> list[dict[str, Any]]:
    """Build the rows of one split.

    Args:
        environment: Name for ``env_adapters.make``.
        name: Name of the group of tasks for metrics; becomes the rows' ``data_source``.
        tasks: One task per row, in order.
        split: ``train`` or ``val``.
        options: The environment's options, the same for all rows; must contain ``max_turns``.
        instructions: The system prompt.

    Returns:
        One row per task; ``agent_name`` selects the agent loop and ``extra_info`` holds everything it needs.

    Raises:
        ValueError: If ``max_turns`` is not a positive integer.
    """
    max_turns = options["max_turns"]
    if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1:
        raise ValueError(f"max_turns must be a positive integer, got {max_turns!r}")
    encoded = json.dumps(options)
    return [
        {
            "data_source": name,
            "prompt": [{"role": "system", "content": instructions}, {"role": "user", "content": task.goal}],
            "ability": "agent",
            "reward_model": {"style": "environment", "ground_truth": ""},
            "agent_name": "comprl_agent",
            "extra_info": {
                "index": index,
                "split": split,
                "environment": environment,
                "environment_options": encoded,
                "seed": task.seed,
                "task_id": task.task_id,
            },
        }
        for index, task in enumerate(tasks)
    ]
