"""Partitions and keys of verl in TransferQueue, and the list of them.

A key ``{uid}`` is a prompt with the state of its group, ``{uid}_{session}_{output}`` a row of it; our records of
episodes and failures are ``{uid}_{session}``.
"""

from collections.abc import Mapping
from typing import Any

import transfer_queue as tq

from verl_comprl.platform.waiting import call_within

TRAIN, EVALUATION = "train", "val"

LIST_SECONDS = 30.0
"""Time that TransferQueue has to list its keys. Its client has no limit, and waits for a dead controller for ever."""

CLEAR_SECONDS = 300.0
"""Time that it has to remove a run's rows. Its client gives up a storage unit after 200 s, the controller never."""

Tags = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""TransferQueue's tags by partition and key."""


def list_keys(seconds: float = LIST_SECONDS) -> Tags:
    """Return what TransferQueue holds.

    Args:
        seconds: How long to wait.

    Raises:
        WaitTimeout: If it takes longer.
    """
    return call_within(tq.kv_list, seconds, "TransferQueue to list its keys") or {}


def prompt_of(key: str) -> str:
    """Return the prompt that a key belongs to."""
    return key.split("_")[0]
