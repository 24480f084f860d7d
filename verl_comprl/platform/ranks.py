"""Lets all ranks of an engine leave the writing of a checkpoint together when one of them fails.

verl's engines meet at barriers while they write. Without this a rank whose disk is full leaves the others waiting
there, and whatever the workers are asked for next meets that barrier instead of its own counterpart.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from verl_comprl.platform.patches import barriers_replaced


class OtherRankFailed(RuntimeError):
    """Another rank could not write its part of a checkpoint."""


@contextmanager
def leaving_together() -> Iterator[None]:
    """Let every barrier in the block, and its end, raise in all ranks if one of them has raised before it.

    A rank that raises meets the others once more, in the place of the next barrier. Collective operations other than
    barriers are not covered: a rank that fails before one leaves the others in it.

    Raises:
        OtherRankFailed: In the ranks that have not failed themselves.
    """
    import torch.distributed as distributed

    def meet(failure: str | None = None) -> None:
        failures: list[str | None] = [None] * distributed.get_world_size()
        distributed.all_gather_object(failures, failure)
        if failure is None and any(failures):
            rank, reason = next((rank, text) for rank, text in enumerate(failures) if text)
            raise OtherRankFailed(f"rank {rank} could not write its part: {reason}")

    try:
        with barriers_replaced(meet):
            yield
        meet()
    except OtherRankFailed:
        raise
    except Exception as error:
        meet(f"{type(error).__name__}: {error}")
        raise
