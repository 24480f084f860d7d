"""Extractor that repeats what a real one wrote, after the same time: everything of it except its computation."""

import asyncio
import itertools
import json
import threading
import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.rollout.replica import TokenOutput

from verl_comprl.config.reading import comprl_config
from verl_comprl.trainer.extractor.runtime import ExtractorRuntime
from verl_comprl.trainer.servers.serving import Serving

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


class _Workers:
    """In the place of the engine's workers: an update takes the recorded time and changes nothing."""

    def __init__(self, update_seconds: float) -> None:
        self._update_seconds = update_seconds
        self._dispatch_info = {"actor": [0]}  # as verl's: one rank

    def update_actor(self, data: TensorDict) -> TensorDict:
        time.sleep(self._update_seconds)
        return tu.get_tensordict({}, non_tensor_dict={"metrics": {"actor/grad_norm": [0.0]}})


class _Control:
    """In the place of verl's manager of the servers: there are none, so that every order is carried out at once."""

    def __init__(self) -> None:
        self.replicas: list[Any] = []
        self.backend = "naive"

    def update_weights(self, version: int) -> None:
        """Do nothing."""

    def abort_replicas(self) -> None:
        """Do nothing."""

    def sleep_replicas(self) -> None:
        """Do nothing."""

    def resume_generation_replicas(self) -> None:
        """Do nothing."""


class RecordedExtractor(ExtractorRuntime):
    """An extractor without engine and servers: an update takes the recorded time.

    Everything around them is inherited, so that learner, checkpoint and manager meet what they meet in a run.
    """

    def __init__(self, view: DictConfig, file: Path, update_seconds: float) -> None:
        """Answer from ``file``.

        Args:
            view: The run's :func:`~verl_comprl.trainer.extractor.runtime.extractor_view`.
            file: The recording.
            update_seconds: Time of an update.
        """
        # Not the constructor that is inherited, which starts engine and servers; a test compares what the two set.
        self.config = view
        comprl = comprl_config(view)
        self._work_timeout, self._update_timeout = comprl.work_timeout, comprl.update_timeout
        self.weight_version = 0
        self._updating, self.hurries = None, lambda: False
        self.lock = threading.RLock()
        self.workers: Any = _Workers(update_seconds)
        self.servers: Any = None
        shares_memory = view.actor_rollout_ref.rollout.free_cache_engine and comprl.extractor.placement != "split"
        self.serving = Serving(_Control(), shares_memory=shares_memory)
        self._file = file

    def client(self) -> Any:
        """Return the client for the manager."""
        return RecordedClient(self._file)

    def save(self, folder: Path) -> None:
        """Do nothing: there are no weights."""

    def load(self, folder: Path, weight_version: int) -> None:
        """Take over the version only."""
        self.weight_version = weight_version

    def restart(self, config: DictConfig) -> None:
        """Refuse: each run makes one of its own."""
        raise NotImplementedError("a recorded extractor belongs to one run")
