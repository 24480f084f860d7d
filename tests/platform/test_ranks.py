"""Failure of one rank in a block: all leave it together, and understand one another afterwards."""

from pathlib import Path
from typing import Any

import pytest
from two_ranks import two_ranks

PLACES = ("before", "between", "after", "nowhere")
"""Where rank 1 fails: before, between or after the barriers that both come to."""


def run_rank(rank: int, file: str, pipe: Any) -> None:
    """Enter a block for every place, and send how it was left and what the ranks have in common afterwards."""
    import torch
    from torch import distributed

    from verl_comprl.platform.ranks import leaving_together

    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    barrier = distributed.barrier

    def fail_at(place: str, failing: str) -> None:
        if rank == 1 and place == failing:
            raise OSError(28, "No space left on device")

    for failing in PLACES:
        left = "well"
        try:
            with leaving_together():
                fail_at("before", failing)
                distributed.barrier()
                fail_at("between", failing)
                distributed.barrier()
                fail_at("after", failing)
        except Exception as error:
            left = f"{type(error).__name__}: {error}"
        total = torch.tensor(rank + 1)
        distributed.all_reduce(total)
        pipe.send((left, int(total), distributed.barrier is barrier))
    distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_rank_that_fails_takes_the_others_with_it(tmp_path: Path) -> None:
    own = "OSError: [Errno 28] No space left on device"
    with two_ranks(run_rank, tmp_path) as pipes:
        for failing in PLACES:
            expected = (
                ("well", "well")
                if failing == "nowhere"
                else (f"OtherRankFailed: rank 1 could not do its part: {own}", own)
            )
            assert [pipe.recv() for pipe in pipes] == [(left, 3, True) for left in expected]
