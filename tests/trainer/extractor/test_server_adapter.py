"""A worker of the extractor whose server has died, while others send weights: verl's adapter and Ray are fakes."""

import asyncio
import pickle
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError
from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

from verl_comprl.errors import WaitTimeout
from verl_comprl.trainer.extractor import server_adapter
from verl_comprl.trainer.extractor.server_adapter import ExtractorServerAdapter


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What verl's adapter did."""
    sent: list[str] = []

    async def update_weights(_: Any, weights: Iterator[str], **options: Any) -> None:
        sent.extend(f"{weight} {options['global_steps']}" for weight in weights)

    async def resume(_: Any, tags: list[str]) -> None:
        sent.extend(tags)

    monkeypatch.setattr(ServerAdapter, "update_weights", update_weights)
    monkeypatch.setattr(ServerAdapter, "resume", resume)
    return sent


@pytest.mark.parametrize(
    ("node", "failing", "dies"),
    [
        (0, {}, False),
        (0, {"server_1001_0": ActorDiedError()}, True),
        (0, {"server_1001_0": ValueError("no such actor")}, True),
        (1, {"server_1001_0": ActorDiedError()}, True),  # the replica's engine is on its first node
        (1, {"server_1001_1": ActorDiedError()}, True),
        (0, {"server_1001_1": ActorDiedError()}, False),
    ],
)
async def test_weights_are_made_for_the_other_workers_and_sent_to_living_servers_only(
    sent: list[str], monkeypatch: pytest.MonkeyPatch, node: int, failing: dict[str, Exception], dies: bool
) -> None:
    def get_actor(name: str) -> Any:
        error = failing.get(name.removeprefix("extractor_"))
        if isinstance(error, ValueError):
            raise error

        async def call(_: Any) -> None:
            if error is not None:
                raise error

        return SimpleNamespace(**{"__ray_call__": SimpleNamespace(remote=call)})

    monkeypatch.setattr(server_adapter, "ray", SimpleNamespace(get_actor=get_actor))
    adapter: Any = object.__new__(ExtractorServerAdapter)
    adapter.replica_rank, adapter.node_rank, adapter.config = 1001, node, {"name": "extractor"}
    made: list[str] = []

    def weights() -> Iterator[str]:
        for name in ("embedding", "head"):
            made.append(name)
            yield name

    await adapter.resume(tags=["weights"])
    await adapter.update_weights(weights(), global_steps=3)
    assert made == ["embedding", "head"], "the other workers would wait for this one"
    assert sent == ([] if dies else ["weights", "embedding 3", "head 3"])


@pytest.mark.parametrize(
    ("given", "rank", "socket"), [(1, 1001, "replica-1001-rank-3"), (1002, 1002, "as verl has it")]
)
def test_neither_rank_nor_socket_is_one_of_the_actors(
    monkeypatch: pytest.MonkeyPatch, given: int, rank: int, socket: str
) -> None:
    """A server with slots of its own names its rank, which is not shifted again."""

    def init(adapter: Any) -> None:
        adapter.replica_rank, adapter.rollout_rank, adapter.zmq_handle = given, 7, "ipc:///tmp/as verl has it.sock"

    context = SimpleNamespace(get_job_id=lambda: "01")
    monkeypatch.setattr(ServerAdapter, "__init__", init)
    monkeypatch.setattr(server_adapter, "limit_transfers", lambda seconds: None)
    monkeypatch.setattr(server_adapter, "ray", SimpleNamespace(get_runtime_context=lambda: context))
    monkeypatch.setenv("RAY_LOCAL_WORLD_SIZE", "4")
    adapter: Any = ExtractorServerAdapter()
    assert adapter.replica_rank == rank and adapter.zmq_handle.endswith(f"{socket}.sock")


async def test_a_server_that_cannot_be_asked_is_an_error(sent: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    async def call(_: Any) -> None:
        raise MemoryError

    server = SimpleNamespace(**{"__ray_call__": SimpleNamespace(remote=call)})
    monkeypatch.setattr(server_adapter, "ray", SimpleNamespace(get_actor=lambda _: server))
    adapter: Any = object.__new__(ExtractorServerAdapter)
    adapter.replica_rank, adapter.node_rank, adapter.config = 1000, 0, {"name": "extractor"}
    with pytest.raises(MemoryError):
        await adapter.update_weights(iter(["embedding"]), global_steps=3)
    assert sent == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize("order", ["resume", "update_weights"])
async def test_a_server_that_does_not_answer_does_not_block_the_engines_process(
    sent: list[str], monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    async def call(_: Any) -> None:
        await asyncio.Event().wait()

    server = SimpleNamespace(**{"__ray_call__": SimpleNamespace(remote=call)})
    monkeypatch.setattr(server_adapter, "ray", SimpleNamespace(get_actor=lambda _: server))
    monkeypatch.setattr(server_adapter, "TRANSFER_SECONDS", 0.05)
    adapter: Any = object.__new__(ExtractorServerAdapter)
    adapter.replica_rank, adapter.node_rank, adapter.config = 1000, 0, {"name": "extractor"}
    with pytest.raises(WaitTimeout) as raised:
        await getattr(adapter, order)(["weights"])
    assert sent == []
    # As Ray sends it to the driver.
    text = "waited 0.05 s for a server of the extractor to say that it is there"
    assert str(pickle.loads(pickle.dumps(raised.value))) == text
