"""Lets all ranks of an engine fail together when one of them fails.

verl's engines meet at barriers and in other collectives. Without this a rank that fails before one leaves the others
waiting there, and whatever the workers are asked for next meets that one instead of its own counterpart.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from verl_comprl.platform.patches import barriers_replaced


class OtherRankFailed(RuntimeError):
    """Another rank could not do its part."""


def meet(failure: Exception | None = None) -> None:
    """Wait for all ranks, of which each says whether it has failed.

    Raises:
        OtherRankFailed: In the ranks that have not failed themselves, if one of them has.
    """
    import torch.distributed as distributed

    failures: list[str | None] = [None] * distributed.get_world_size()
    distributed.all_gather_object(failures, failure and f"{type(failure).__name__}: {failure}")
    if failure is None and any(failures):
        rank, reason = next((rank, text) for rank, text in enumerate(failures) if text)
        raise OtherRankFailed(f"rank {rank} could not do its part: {reason}")


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
