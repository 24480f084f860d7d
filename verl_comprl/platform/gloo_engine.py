"""Weight sync from a trainer to servers elsewhere over gloo: verl's checkpoint engine ``comprl_gloo``.

verl's own engines for this need CUDA, RDMA or a vendor's package; this one needs TCP only. It runs on a CPU, and on GPU
hosts without cupy, where weights pass through host memory. Settings, both below ``rollout.checkpoint_engine``::

    backend: comprl_gloo
    custom_backend_module: verl_comprl.platform.gloo_engine

One rank of the trainer broadcasts to all ranks of the servers, bucket by bucket. A process group lives for one sync.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import ray
import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # pyright: ignore[reportPrivateImportUsage]
from verl.checkpoint_engine.base import (
    CheckpointEngine,
    CheckpointEngineRegistry,
    TensorMeta,
    merge_weight_chunks,
    split_weight_chunks,
)

from verl_comprl.names import GLOO_ENGINE
from verl_comprl.platform.weight_transfers import exhaust

Address = tuple[str, int]


@CheckpointEngineRegistry.register(GLOO_ENGINE)  # pyright: ignore[reportAttributeAccessIssue]
class GlooCheckpointEngine(CheckpointEngine):
    """One rank's end of the sync."""

    def __init__(self, bucket_size: int, is_master: bool = False, timeout_seconds: float = 600.0) -> None:
        """Connect nothing yet.

        Args:
            bucket_size: Bytes of one broadcast; a larger weight is sent in parts.
            is_master: Whether this is the trainer's first rank, which sends.
            timeout_seconds: Limit of each broadcast, and of connecting.
        """
        self._bucket_size = bucket_size
        self._is_master = is_master
        self._timeout = timedelta(seconds=timeout_seconds)
        self._store: TCPStore | None = None
        self._group: Any = None

    def prepare(self) -> Address | None:  # pyright: ignore[reportIncompatibleMethodOverride]  verl's engines too
        """Open the store through which the ranks find each other; returns its address, on the sending rank."""
        self.finalize()  # the sync before may have failed, and its store is not that of this one
        if not self._is_master:
            return None
        host = _own_address()
        self._store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=self._timeout)
        return host, self._store.port

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Give rank 0 to the trainer's first rank, -1 to its others, and the rest to the servers' ranks."""
        size, address = 1 + rollout_world_size, metadata[0]

        def arguments(ranks: list[int]) -> dict[str, list[Any]]:
            return {"rank": ranks, "world_size": [size] * len(ranks), "address": [address] * len(ranks)}

        return arguments([0, *[-1] * (actor_wg_world_size - 1)]), arguments(list(range(1, size)))

    def init_process_group(self, rank: int, world_size: int, address: Address) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Connect to the other ranks; rank -1 takes no part."""
        if rank < 0:
            return
        store = self._store or TCPStore(*address, is_master=False, wait_for_workers=False, timeout=self._timeout)
        self._store = store
        gloo: Any = ProcessGroupGloo  # its stub lacks most of it
        options = gloo._Options()
        # By address: the name of a host may resolve to its loopback interface.
        options._devices = [gloo.create_device(hostname=_own_address())]
        options._timeout = self._timeout
        self._group = gloo(PrefixStore("comprl", store), rank, world_size, options)

    def finalize(self) -> None:
        """Disconnect."""
        self._group = self._store = None

    @torch.no_grad()
    async def send_weights(self, weights: Any, global_steps: int | None = None) -> None:
        """Broadcast ``weights``, pairs of name and tensor.

        Every rank of the trainer must exhaust them, also those that send nothing: producing a weight is a collective.
        """
        if self._group is None:
            await exhaust(weights)
            return
        try:
            await self._send_all(weights)
        except Exception:  # whatever it was is raised again
            with suppress(Exception):
                await exhaust(weights)
            raise

    async def _send_all(self, weights: Any) -> None:
        bucket, metas, filled = torch.empty(self._bucket_size, dtype=torch.uint8), [], 0
        async for meta, chunk in split_weight_chunks(weights, self._bucket_size):
            if filled + meta.chunk_size > self._bucket_size:
                await self._send(metas, bucket[:filled])
                metas, filled = [], 0
            assert chunk is not None
            # A chunk of a tensor on a device is copied to the host here.
            bucket[filled : filled + meta.chunk_size].copy_(chunk)
            meta.offset = filled
            metas.append(meta)
            filled += meta.chunk_size
        if metas:
            await self._send(metas, bucket[:filled])
        await self._send([], bucket[:0])

    async def receive_weights(self, global_steps: int | None = None) -> AsyncGenerator[tuple[str, torch.Tensor], None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Yield pairs of name and tensor, in host memory."""
        async for name, weight in merge_weight_chunks(self._received(), self._bucket_size):  # pyright: ignore[reportArgumentType]
            yield name, weight

    async def _received(self) -> AsyncGenerator[tuple[TensorMeta, torch.Tensor], None]:
        while True:
            sizes = await self._broadcast(torch.empty(2, dtype=torch.int64))
            header, content = (torch.empty(int(size), dtype=torch.uint8) for size in sizes)
            metas = _read_metas((await self._broadcast(header)).numpy().tobytes())
            if not metas:
                return
            await self._broadcast(content)
            for meta in metas:
                assert meta.offset is not None
                # A view: a tensor's memory is the bucket's, which is a new one each time. Its start may not fit the
                # tensor's type, hence the copy in that case.
                chunk = content[meta.offset : meta.offset + meta.chunk_size]
                yield meta, chunk if meta.offset % meta.dtype.itemsize == 0 else chunk.clone()

    async def _send(self, metas: list[TensorMeta], content: torch.Tensor) -> None:
        header = torch.frombuffer(bytearray(_write_metas(metas)), dtype=torch.uint8)
        await self._broadcast(torch.tensor([len(header), len(content)]))
        await self._broadcast(header)
        if metas:
            await self._broadcast(content)

    async def _broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Broadcast from rank 0 in a thread: the worker answers other calls meanwhile."""
        work = self._group.broadcast(tensor, 0)
        await asyncio.to_thread(work.wait)
        return tensor


def _write_metas(metas: list[TensorMeta]) -> bytes:
    # No pickle: what a process that reaches the group's port sends would be executed.
    rows = [(m.name, list(m.shape), str(m.dtype), m.chunk_offset, m.chunk_size, m.offset) for m in metas]
    return json.dumps(rows).encode()


def _read_metas(header: bytes) -> list[TensorMeta]:
    return [
        TensorMeta(name, torch.Size(shape), _dtype(dtype), chunk_offset, chunk_size, offset)
        for name, shape, dtype, chunk_offset, chunk_size, offset in json.loads(header)
    ]


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"weights of the type {name!r} cannot be received: torch has no such type")
    return dtype


def _own_address() -> str:
    return ray.util.get_node_ip_address().strip("[]")
