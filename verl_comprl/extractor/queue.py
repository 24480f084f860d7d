"""The distillation queue: requests are removed only after the bank has committed what they led to.

At-least-once: a request that is being worked on when a snapshot is taken is in the snapshot too; ids make the second
time harmless.
"""

import asyncio
from pathlib import Path

from verl_comprl.experience.schema import DistillationRequest


class DistillationQueue:
    """Unbounded first-in first-out queue with acknowledgement; used from one event loop."""

    def __init__(self) -> None:
        """Create an empty queue."""
        self._pending: dict[str, DistillationRequest] = {}
        self._ready: asyncio.Queue[str] = asyncio.Queue()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        """Return the number of requests not yet acknowledged."""
        return len(self._pending)

    def put(self, request: DistillationRequest) -> bool:
        """Add a request; returns ``False`` for one that is already pending."""
        if request.id in self._pending:
            return False
        self._pending[request.id] = request
        self._idle.clear()
        self._ready.put_nowait(request.id)
        return True

    async def get(self) -> DistillationRequest:
        """Wait for the next request; it stays pending until :meth:`acknowledge`."""
        return self._pending[await self._ready.get()]

    def acknowledge(self, request: DistillationRequest) -> None:
        """Remove a request whose result is committed, or which is given up."""
        self._pending.pop(request.id, None)
        if not self._pending:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Wait until nothing is pending."""
        await self._idle.wait()

    def save(self, path: Path) -> None:
        """Write the pending requests as JSON lines."""
        path.write_text("".join(f"{request.model_dump_json()}\n" for request in self._pending.values()), "utf-8")

    def restore(self, path: Path) -> None:
        """Add the requests that :meth:`save` wrote to those that are pending."""
        # Not splitlines(): it also splits at characters that JSON leaves as they are.
        for line in filter(None, path.read_text("utf-8").split("\n")):
            self.put(DistillationRequest.model_validate_json(line))
