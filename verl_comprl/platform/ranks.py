"""Lets all ranks of an engine fail together when one of them fails.

verl's engines meet at barriers and in other collectives. Without this a rank that fails before one leaves the others
waiting there, and whatever the workers are asked for next meets that one instead of its own counterpart.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from verl_comprl.platform.patches import barriers_replaced


class OtherRankFailed(RuntimeError):
    """Another rank could not do its part."""


class RanksApart(RuntimeError):
    """Other ranks have not come in time: they wait in a collective operation that this one has not begun."""


MEETING_SECONDS = 120.0
"""Time in which all ranks end an update after the first of them: all have passed its last collective operation then."""


def meeting_group() -> Any:
    """Return a group of all ranks for :func:`ending_together` and :func:`tell_each_other`, None if there is one rank.

    On GPUs it meets on the CPU, past what NCCL waits for. All ranks have to call this.
    """
    import torch.distributed as distributed

    if distributed.get_world_size() == 1:
        return None
    return distributed.new_group(backend="gloo", timeout=timedelta(seconds=MEETING_SECONDS))


def meet(failure: Exception | None = None, group: Any = None) -> None:
    """Wait for all ranks, of which each says whether it has failed.

    Args:
        failure: Why this rank cannot do its part.
        group: Where they meet; by default where all collective operations take place.

    Raises:
        OtherRankFailed: In the ranks that have not failed themselves, if one of them has.
    """
    failures = _gather(failure and f"{type(failure).__name__}: {failure}", group)
    if failure is None and any(failures):
        rank, reason = next((rank, text) for rank, text in enumerate(failures) if text)
        raise OtherRankFailed(f"rank {rank} could not do its part: {reason}")


def _gather(said: Any, group: Any = None) -> list[Any]:
    import torch.distributed as distributed

    every: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(every, said, group=group)
    return every


@contextmanager
def leaving_together() -> Iterator[None]:
    """Let every barrier in the block, and its end, raise in all ranks if one of them has raised before it.

    A rank that raises meets the others once more, in the place of the next barrier. Collective operations other than
    barriers are not covered: a rank that fails before one leaves the others in it.

    Raises:
        OtherRankFailed: In the ranks that have not failed themselves.
    """
    try:
        with barriers_replaced(meet):
            yield
        meet()
    except OtherRankFailed:
        raise
    except Exception as error:
        meet(error)
        raise


@contextmanager
def ending_together(group: Any) -> Iterator[None]:
    """Let the block raise in all ranks if it has raised in one of them, and say whether they can go on together.

    Args:
        group: That of :func:`meeting_group`.

    Raises:
        OtherRankFailed: In the ranks that have not failed themselves: all can do the next one.
        RanksApart: In a rank that the others leave alone; it may have failed itself, which is the cause then.
    """
    try:
        yield
    except Exception as error:
        _meet_in_time(error, group)
        raise
    _meet_in_time(None, group)


def tell_each_other(said: Any, group: Any) -> list[Any]:
    """Return what all ranks have said, by rank.

    Args:
        said: By this rank; it must be possible to pickle it.
        group: That of :func:`meeting_group`.

    Raises:
        RanksApart: If the others do not say anything.
    """
    if group is None:
        return [said]
    with _in_time():
        return _gather(said, group)


def _meet_in_time(failure: Exception | None, group: Any) -> None:
    if group is not None:
        with _in_time(failure):
            meet(failure, group)


@contextmanager
def _in_time(failure: Exception | None = None) -> Iterator[None]:
    try:
        yield
    except OtherRankFailed:
        raise
    except Exception as error:  # gloo has no type of its own for a time limit
        text = f"other ranks have not ended their part within {MEETING_SECONDS:g} s"
        raise RanksApart(f"{text}; this one has failed: {failure!r}" if failure else text) from failure or error
