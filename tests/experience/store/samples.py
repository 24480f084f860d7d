"""Entries of which each has a text of its own, and as many vectors, for tests of stores."""

import numpy as np

from verl_comprl.experience import Experience, derive_id

IDENTITY = {"model": "fake", "dimension": 8}


def entries(count: int) -> list[Experience]:
    return [Experience(id=derive_id("e", n), title="", content=f"c{n}") for n in range(count)]


def vectors(count: int) -> np.ndarray:
    values = np.random.default_rng(0).normal(size=(count, 8)).astype(np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)
