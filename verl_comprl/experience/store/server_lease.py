"""Lease of the writer of a bank on a Qdrant server.

A point in a collection of its own, ``<name>.lease``, names the writer. It changes only on the condition that its
turn is the one that was read, so of several processes one wins; the others get the same answer and see who won when
they read it back.
"""

import asyncio
import logging
import os
import secrets
import socket
import time
import uuid
from pathlib import Path
from typing import Any

from qdrant_client import models

from verl_comprl.experience.store.errors import LeaseLost, StoreError, StoreVanished
from verl_comprl.experience.store.server_client import ServerClient, status_of

logger = logging.getLogger(__name__)

LEASE_SECONDS = 30.0
"""Seconds since its last renewal for which a writer counts as alive."""
RENEW_SECONDS = 10.0
_SILENCE = 2.2
"""Times ``RENEW_SECONDS`` in which a living writer has renewed its lease: it looks at that often, and may skip one."""
_LOOK_SECONDS = 1.0
"""Seconds between two looks at the lease of a writer that may be dead."""
_POINT = 1
# Linux's monotonic clock stands still while the machine sleeps; macOS has no such name, and its clock does not.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Lease:
    """The right to write a bank; lost if another process takes it after it has expired."""

    def __init__(self, client: ServerClient, name: str) -> None:
        """Use the lease of the bank ``name``; ``take`` acquires it."""
        self._client = client
        self._collection = f"{name}.lease"
        self._id = uuid.uuid4().hex
        self._turn = 0
        self._renewed_at = (0.0, 0.0)
        self._lost = ""
        self._changing = asyncio.Lock()

    async def take(self) -> None:
        """Become the writer; waits until the lease of one that may be dead has expired, half a minute at most.

        Raises:
            StoreError: If there is another writer, which renews its lease, or one that takes it at the same moment.
        """
        writer = await self._read()
        if writer is None:
            await self._create()
            writer = await self._read() or {}
        writer = await self._expired(writer)
        self._turn = _whole(writer.get("turn"))
        now = _clocks()
        await self._write(self._id)
        writer = await self._read() or {}
        if writer.get("owner") != self._id:
            self._check_free(writer)
            raise StoreError(f"{self._client.name} is being opened by another process; try again")
        self._turn, self._renewed_at = _whole(writer.get("turn")), now

    async def regain(self) -> None:
        """Take the lease again if it has vanished from the server, with the bank.

        Raises:
            StoreError: If another process is the writer by now.
        """
        async with self._changing:  # a renewal must not meet the new one before it is taken
            if not self._lost and await self._read() is None:
                await self.take()

    async def check(self) -> None:
        """Check that no other writer counts as alive.

        Raises:
            StoreError: If one does.
        """
        self._check_free(await self._read() or {})

    async def renew(self) -> None:
        """Record that the writer is alive, unless that was done less than ``RENEW_SECONDS`` ago.

        Raises:
            LeaseLost: If another process has become the writer; nothing can be written any more then.
        """
        if self._lost:
            raise LeaseLost(self._lost)
        if _passed(self._renewed_at) < RENEW_SECONDS:
            return
        await self.confirm()

    async def confirm(self) -> None:
        """Record that the writer is alive, whenever that was done last.

        Raises:
            StoreVanished: If the lease is no longer on the server.
            LeaseLost: If another process has become the writer; nothing can be written any more then.
        """
        async with self._changing:
            await self._confirm()

    async def _confirm(self) -> None:
        if self._lost:
            raise LeaseLost(self._lost)
        for _ in range(2):  # the first may only learn the turn of a renewal that got no answer, and change nothing
            now = _clocks()
            mark = await self._write(self._id)
            writer = await self._read()
            if writer is None:  # taken by nobody: the server has lost it since, which `regain` mends
                raise StoreVanished(f"{self._client.name}: its lease is no longer on the server")
            if writer.get("owner") != self._id:
                self._lost = (
                    f"{self._client.name}: this process is no longer its writer, {_described(writer)} is; "
                    "nothing more can be written, open the bank again"
                )
                raise LeaseLost(self._lost)
            self._turn = _whole(writer.get("turn"))
            if writer.get("mark") == mark:
                self._renewed_at = now
                return

    async def release(self) -> None:
        """Stop being the writer, so that another process can open the bank at once."""
        if not self._lost:
            await self._write("")

    def _check_free(self, writer: dict[str, Any]) -> None:
        if writer.get("owner") and abs(_age(writer)) < LEASE_SECONDS and not _is_dead(writer):
            raise self._taken(writer)

    def _taken(self, writer: dict[str, Any]) -> StoreError:
        age = _age(writer)
        seen = f" (seen {age:.0f} s ago)" if abs(age) < LEASE_SECONDS else ", whose clock differs from this machine's"
        return StoreError(
            f"{self._client.name} is being written by {_described(writer)}{seen}; close that run, or choose another "
            "comprl.bank.collection. If it died, an opening waits until its lease has expired"
        )

    async def _expired(self, writer: dict[str, Any]) -> dict[str, Any]:
        """Return the lease once it is free: given back, of a dead process, or not renewed for long enough.

        Its time of renewal alone does not tell: the writer's clock may differ from this machine's.
        """
        age, turn = _age(writer), writer.get("turn")
        left = LEASE_SECONDS - age if abs(age) < LEASE_SECONDS else 0.0
        seconds = max(_SILENCE * RENEW_SECONDS, min(left, LEASE_SECONDS))
        # By the clock that stands still while this machine sleeps: so do writers in other containers of it.
        deadline, said = time.monotonic() + seconds, False
        while writer.get("owner") and not _is_dead(writer):
            if writer.get("turn") != turn:
                raise self._taken(writer)
            left = deadline - time.monotonic()
            if left <= 0:
                break
            if not said:
                what = "for the lease of its writer to expire or to be renewed"
                logger.warning("%s: waiting %.0f s %s, %s", self._client.name, seconds, what, _described(writer))
                said = True
            await asyncio.sleep(min(left, _LOOK_SECONDS))
            writer = await self._read() or {}
        return writer

    async def _create(self) -> None:
        shape = models.VectorParams(size=1, distance=models.Distance.DOT)
        try:
            await self._client.call_once(
                lambda client: client.create_collection(self._collection, vectors_config=shape)
            )
        except StoreError as error:
            if status_of(error) != 409:
                raise
        # At random: the writer of a bank that has vanished must not meet its own turn in the lease of another process.
        payload = {"owner": "", "turn": secrets.randbits(48)}
        point = models.PointStruct(id=_POINT, vector=[1.0], payload=payload)
        await self._client.call(
            lambda client: client.upsert(
                self._collection, [point], wait=True, update_mode=models.UpdateMode.INSERT_ONLY
            )
        )

    async def _read(self) -> dict[str, Any] | None:
        try:
            found = await self._client.call(
                lambda client: client.retrieve(
                    self._collection, [_POINT], consistency=models.ReadConsistencyType.MAJORITY
                )
            )
        except StoreError as error:
            if status_of(error) == 404 or "not found" in str(error):  # the latter in the client's local mode
                return None
            raise
        return (found[0].payload or {}) if found else None

    async def _write(self, owner: str) -> str:
        """Write the lease if its turn is still ours; returns the mark by which to recognise what was written."""
        payload: dict[str, Any] = {
            "owner": owner,
            "turn": self._turn + 1,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "processes": _processes(),
            "seen_at": time.time(),
            "mark": uuid.uuid4().hex,  # a time would not do: a server may return another last digit
        }
        point = models.PointStruct(id=_POINT, vector=[1.0], payload=payload)
        same = models.Filter(must=[models.FieldCondition(key="turn", match=models.MatchValue(value=self._turn))])
        # Update only: a condition alone would insert a point that is not there. A repeated call changes nothing more.
        # On several nodes the condition is judged by one of them, and read back from most.
        await self._client.call(
            lambda client: client.upsert(
                self._collection,
                [point],
                wait=True,
                ordering=models.WriteOrdering.STRONG,
                timeout=self._client.whole_seconds,
                update_mode=models.UpdateMode.UPDATE_ONLY,
                update_filter=same,
            )
        )
        return payload["mark"]


def _clocks() -> tuple[float, float]:
    """Read two clocks: one that nobody sets, and one that also knows of pauses of a virtual machine."""
    return time.clock_gettime(_CLOCK), time.time()


def _passed(since: tuple[float, float]) -> float:
    """Return the seconds since a reading by the clock that says more: too many only cost a look at the lease."""
    return max(now - then for now, then in zip(_clocks(), since, strict=True))


def _age(writer: dict[str, Any]) -> float:
    """Return for how many seconds the lease has not been renewed, if the writer's clock is right."""
    return time.time() - _seconds(writer.get("seen_at"))


def _described(writer: dict[str, Any]) -> str:
    return f"process {_whole(writer.get('pid'))} on {str(writer.get('host'))[:80]!r}"


def _is_dead(writer: dict[str, Any]) -> bool:
    """Return whether the writer was a process that would be seen here, and has ended."""
    pid, here = _whole(writer.get("pid")), _processes()
    # Its host's name does not tell: a container can have the name of its host, or of another container.
    if pid < 1 or not here or writer.get("processes") != here:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    return False


def _processes() -> list[str]:
    """Return this machine's boot and the namespace of process ids, in which these name processes; [] if unknown."""
    try:
        return [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    except OSError:
        return []


def _whole(value: Any) -> int:
    return value if type(value) is int else 0


def _seconds(value: Any) -> float:
    return float(value) if type(value) in (int, float) and value == value else 0.0
