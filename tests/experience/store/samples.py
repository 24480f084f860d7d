"""Entries with texts and vectors of their own, and the arguments of a call that writes them, for tests of stores."""

from typing import Any

import numpy as np

from verl_comprl.experience import Experience, derive_id

IDENTITY = {"model": "fake", "dimension": 8}
CALL: dict[str, Any] = {"listed": (), "task": "t", "environment": "e", "step": 0, "weight_version": 0}
"""What ``ExperienceBank.apply`` needs besides operations and the id of a call."""


def entries(count: int) -> list[Experience]:
    return [Experience(id=derive_id("e", n), title="", content=f"c{n}") for n in range(count)]


def vectors(count: int) -> np.ndarray:
    values = np.random.default_rng(0).normal(size=(count, 8)).astype(np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)
