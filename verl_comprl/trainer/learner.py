"""The extractor's own schedule: whenever the buffer holds a full batch, one CISPO step, whatever the actor does."""

import threading
import time
from typing import Any

from verl_comprl.extractor.buffer import TrainingBatch
from verl_comprl.manager.actor import wait_for
from verl_comprl.trainer.extractor_runtime import ExtractorRuntime

POLL_SECONDS = 0.25


class ExtractorLearner:
    """A background thread between buffer and extractor."""

    def __init__(self, extractor: ExtractorRuntime, manager: Any) -> None:
        """Bind to a runtime and the manager's Ray handle; :meth:`start` begins."""
        self._extractor = extractor
        self._manager = manager
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="extractor-learner", daemon=True)
        self._error: Exception | None = None
        self._last: dict[str, float] = {}
        self._seconds = 0.0

    def start(self) -> None:
        """Begin to learn."""
        self._thread.start()

    def stop(self) -> None:
        """Let a running update finish, then end."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def metrics(self) -> dict[str, float]:
        """Return what the last update reported, and totals.

        Raises:
            RuntimeError: If an update failed; a run whose extractor cannot learn must not go on unnoticed.
        """
        if self._error is not None:
            raise RuntimeError(f"an update of the extractor failed: {self._error}") from self._error
        totals = {"updates": float(self._extractor.weight_version), "seconds": self._seconds}
        return {f"comprl/extractor/{name}": value for name, value in (self._last | totals).items()}

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                if not self._update_once():
                    self._stopped.wait(POLL_SECONDS)
        except Exception as error:
            self._error = error

    def _update_once(self) -> bool:
        with self._extractor.lock:
            version = self._extractor.weight_version
            batch: TrainingBatch | None = wait_for(self._manager.next_batch.remote(version))
            if batch is None:
                return False
            started = time.perf_counter()
            measured = self._extractor.update(batch)
            wait_for(self._manager.trained.remote())
            self._seconds += time.perf_counter() - started
        size = len(batch.records)
        self._last = measured | {
            "reward": sum(batch.rewards) / size,
            "weight": sum(batch.weights) / size,
            "staleness": sum(version - record.weight_version for record in batch.records) / size,
            "response_tokens": sum(len(record.response_ids) for record in batch.records) / size,
        }
        return True
