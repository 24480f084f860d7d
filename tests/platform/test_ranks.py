"""Ranks leave a block together if one of them fails, and a rank that the others leave alone raises ``RanksApart``."""

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


ENDINGS = ("nobody fails", "one fails", "both fail", "one waits")


def end_updates(rank: int, file: str, pipe: Any) -> None:
    """Make an update for every ending, and send how it was left; in the last, rank 1 waits for what never comes."""
    import torch
    from torch import distributed

    from verl_comprl.platform import ranks

    ranks.MEETING_SECONDS = 3.0
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    group = ranks.meeting_group()
    for ending in ENDINGS:
        left = "well"
        try:
            with ranks.ending_together(group):
                if ending == "both fail" or (rank == 0 and ending != "nobody fails"):
                    raise MemoryError(f"of rank {rank}")
                if ending == "one waits":
                    distributed.all_reduce(torch.zeros(()))
        except Exception as error:
            left = f"{type(error).__name__}: {error} from {error.__cause__!r}"
        pipe.send(left)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_update_ends_in_the_same_way_in_all_ranks_or_it_is_said_that_they_are_apart(tmp_path: Path) -> None:
    with two_ranks(end_updates, tmp_path) as pipes:
        ends = {ending: [pipe.recv() for pipe in pipes] for ending in ENDINGS[:3]}
        assert ends["nobody fails"] == ["well", "well"]
        own = "MemoryError: of rank 0"
        assert ends["one fails"] == [
            f"{own} from None",
            f"OtherRankFailed: rank 0 could not do its part: {own} from None",
        ]
        assert ends["both fail"] == [f"MemoryError: of rank {rank} from None" for rank in range(2)]
        assert pipes[0].recv() == (
            "RanksApart: other ranks have not ended their part within 3 s; this one has failed: "
            "MemoryError('of rank 0') from MemoryError('of rank 0')"
        )
        assert not pipes[1].poll()  # it still waits, and is ended with the test
