"""Partitions and keys of verl in TransferQueue.

A key ``{uid}`` is a prompt with the state of its group, ``{uid}_{session}_{output}`` a row of it; our records of
episodes and failures are ``{uid}_{session}``.
"""

TRAIN, EVALUATION = "train", "val"


def prompt_of(key: str) -> str:
    """Return the prompt that a key belongs to."""
    return key.split("_")[0]
