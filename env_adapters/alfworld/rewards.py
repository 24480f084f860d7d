"""What an episode is worth that ends without success; success is worth 1."""

_FAILURE = {"signed": -1.0, "binary": 0.0}


def failure_reward(kind: str) -> float:
    """Return the reward of being cut off.

    Args:
        kind: ``signed``, the paper's -1, or ``binary``, 0.

    Raises:
        ValueError: If the kind is unknown.
    """
    if kind not in _FAILURE:
        raise ValueError(f"unknown reward {kind!r}; known: {', '.join(_FAILURE)}")
    return _FAILURE[kind]
