"""Extractor that repeats what a real one wrote, after the same time: everything of it except its computation."""

import asyncio
import itertools
import json
import threading
import time
from pathlib import Path
from typing import Any

from verl.workers.rollout.replica import TokenOutput

ENOUGH = 300
"""Answers that are recorded."""


class RecordingClient:
    """verl's client of a server; appends the first answers and their seconds to a file."""

    def __init__(self, client: Any, file: Path) -> None:
        """Wrap ``client``."""
        self._client, self._file, self._left = client, file, ENOUGH

    async def generate(self, request_id: str, **request: Any) -> TokenOutput:
        """Generate, and record."""
        if not self._left:
            return await self._client.generate(request_id, **request)
        self._left -= 1
        started = time.perf_counter()
        output = await self._client.generate(request_id, **request)
        row = {
            "seconds": time.perf_counter() - started,
            "token_ids": list(output.token_ids),
            "log_probs": list(output.log_probs or []),
        }
        with self._file.open("a") as file:
            file.write(json.dumps(row) + "\n")
        return output


class RecordedClient:
    """Client that answers from a recording, in its order and again from the start."""

    def __init__(self, file: Path) -> None:
        """Read the recording."""
        self._rows = itertools.cycle([json.loads(line) for line in file.read_text().splitlines()])

    async def generate(self, request_id: str, **_: Any) -> TokenOutput:
        """Wait as long as the recorded answer took, and return it."""
        row = next(self._rows)
        await asyncio.sleep(row["seconds"])
        return TokenOutput(token_ids=row["token_ids"], log_probs=row["log_probs"], extra_fields={"max_global_steps": 0})


class RecordedExtractor:
    """In the place of an ``ExtractorRuntime``: no server, no engine; an update takes the recorded time."""

    def __init__(self, view: Any, file: Path, update_seconds: float) -> None:
        """Answer from ``file``."""
        self.config, self.weight_version, self.lock = view, 0, threading.RLock()
        self._file, self._update_seconds = file, update_seconds

    def client(self) -> RecordedClient:
        """Return the client for the manager."""
        return RecordedClient(self._file)

    def publish_weights(self) -> None:
        """Do nothing."""

    def update(self, batch: Any) -> dict[str, float]:
        """Wait as long as an update took."""
        time.sleep(self._update_seconds)
        self.weight_version += 1
        return {}
