"""Reward of ALFWorld episodes that end without success; success always gives 1."""

_FAILURE = {"signed": -1.0, "binary": 0.0}


def failure_reward(kind: str) -> float:
    """Return the reward of a truncated episode.

    Args:
        kind: ``signed``, the paper's -1, or ``binary``, 0.

    Raises:
        ValueError: If the kind is unknown.
    """
    if kind not in _FAILURE:
        raise ValueError(f"unknown reward {kind!r}; known: {', '.join(_FAILURE)}")
    return _FAILURE[kind]
