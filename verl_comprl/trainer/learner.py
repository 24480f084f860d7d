"""Background thread that trains the extractor: one CISPO step whenever the buffer holds a full batch.

Its schedule is independent of the actor's steps.
"""

import threading
import time
from typing import Any

from verl_comprl.extractor.buffer import TrainingBatch
from verl_comprl.manager.actor import wait_for
from verl_comprl.trainer.extractor_runtime import ExtractorRuntime
from verl_comprl.trainer.metrics import update_metrics

POLL_SECONDS = 0.25


class ExtractorLearner:
    """Takes batches from the manager's buffer and updates the extractor with them."""

    def __init__(self, extractor: ExtractorRuntime, manager: Any) -> None:
        """Set up for a runtime and the manager's Ray handle; :meth:`start` starts the thread."""
        self._extractor = extractor
        self._manager = manager
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="extractor-learner", daemon=True)
        self._error: Exception | None = None
        self._last: dict[str, float] = {}
        self._seconds = 0.0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after the update that is running, if any."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the last update, and totals.

        Raises:
            RuntimeError: If an update failed. The thread has ended then, which must not stay unnoticed.
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
        # One lock from next_batch to trained, since next_batch leaves the samples in the buffer. A checkpoint takes the
        # same lock: taken between the two, it would hold the updated weights and still the samples, and a resumed run
        # would train on them twice.
        with self._extractor.lock:
            version = self._extractor.weight_version
            batch: TrainingBatch | None = wait_for(self._manager.next_batch.remote(version))
            if batch is None:
                return False
            started = time.perf_counter()
            measured = self._extractor.update(batch)
            wait_for(self._manager.trained.remote())
            self._seconds += time.perf_counter() - started
        self._last = measured | update_metrics(batch, version)
        return True
