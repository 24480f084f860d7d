"""Transfers of weights by two training ranks, with a failure in one; verl's sender and the servers are fakes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from two_ranks import two_ranks

NAMES = ("embedding", "layer", "head")
FAILING = ("resume", "send", "nowhere")
"""Where rank 1 fails, in one attempt after the other."""


def run_rank(rank: int, file: str, pipe: Any) -> None:
    """Copy weights as verl's worker does, for every place; send how that ended and the sums that were produced."""
    import torch
    from torch import distributed
    from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

    from verl_comprl.trainer.extractor import server_adapter
    from verl_comprl.trainer.extractor.server_adapter import ExtractorServerAdapter

    released: list[str] = []
    sums: list[int] = []
    place = ""

    def fail_at(where: str) -> None:
        if rank == 1 and where == place:
            raise ConnectionError(f"a server does not answer ({where})")

    def weights() -> Any:
        for number, name in enumerate(NAMES):
            total = torch.tensor((rank + 1) * 10**number)
            distributed.all_reduce(total)
            sums.append(int(total))
            yield name, total

    async def send(_: Any, produced: Any, **__: Any) -> None:
        for name, _weight in produced:
            if name == "layer":
                fail_at("send")

    async def resume(_: Any, tags: list[str]) -> None:
        fail_at("resume")

    async def alive(_: Any) -> bool:
        return False

    ServerAdapter.update_weights, ServerAdapter.resume = send, resume  # pyright: ignore
    ExtractorServerAdapter._server_has_died = alive  # pyright: ignore
    server_adapter.release_receiver = lambda handle: bool(released.append(handle))
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    adapter: Any = object.__new__(ExtractorServerAdapter)
    adapter._in_engine, adapter.zmq_handle = True, "socket"

    async def copy() -> None:
        await adapter.resume(tags=["weights"])
        await adapter.update_weights(weights(), global_steps=1)
        await asyncio.to_thread(distributed.barrier)
        await adapter.resume(tags=["kv_cache"])

    for where in FAILING:
        place = where
        sums.clear()
        left = "well"
        try:
            asyncio.run(copy())
        except Exception as error:
            left = f"{type(error).__name__}: {error}"
        pipe.send((left, list(sums), len(released)))
    distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_rank_that_cannot_send_fails_together_with_the_others(tmp_path: Path) -> None:
    with two_ranks(run_rank, tmp_path) as pipes:
        seen = {place: [pipe.recv() for pipe in pipes] for place in FAILING}
    for place, sums in (("resume", []), ("send", [3, 30, 300])):
        (first, *_), (own, *_) = seen[place]
        assert own == f"ConnectionError: a server does not answer ({place})"
        assert first == f"OtherRankFailed: rank 1 could not do its part: {own}"
        assert [found[1] for found in seen[place]] == [sums] * 2, "the ranks have not produced the same weights"
    # The rank that failed lets its server go, and both do before the next transfer begins.
    assert [found[2] for found in seen["send"]] == [0, 1]
    assert seen["nowhere"] == [("well", [3, 30, 300], 1), ("well", [3, 30, 300], 2)]
