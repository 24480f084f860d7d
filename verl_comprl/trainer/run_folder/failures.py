"""Failed rollouts of a run: records in ``failures.jsonl``, first tracebacks in ``train.log``, counts as metrics.

Owns the trainer's side. ``rollout/failures.py`` sends the records; :mod:`verl_comprl.errors` has the failure model.
"""

import json
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import transfer_queue as tq

from verl_comprl.errors import Boundary
from verl_comprl.record.reader import FAILURES
from verl_comprl.rollout.failures import PARTITION, FailedRollout
from verl_comprl.trainer.run_folder.log import append_record
from verl_comprl.trainer.step.keys import list_keys


class FailureLog:
    """Failed rollouts of one run."""

    def __init__(self, folder: Path) -> None:
        """Write into ``folder``, the run's, as soon as there is something to write."""
        self._file = folder / FAILURES
        self._total: Counter[str] = Counter()
        self._traced: set[tuple[str, str]] = set()

    def collect(self, metrics: dict[str, Any]) -> None:
        """Write the failures that have arrived since the last call, and add their counts to ``metrics``.

        Every boundary is counted, with 0 if nothing failed there: a chart would connect the steps that have a value.
        """
        failures = _take()
        counts = Counter(failure.boundary for failure in failures)
        for boundary in Boundary:
            # A step with an evaluation collects twice.
            name = f"comprl/rollouts/failed/{boundary}"
            metrics[name] = metrics.get(name, 0.0) + float(counts[boundary])
        self._total.update(counts)
        if failures:
            self._write(failures)

    def explain(self, error: BaseException) -> None:
        """Write what has arrived before a run ends with ``error``, and add a note on failed rollouts to it."""
        try:
            self.collect({})
        except Exception as failure:  # the run's own error matters more
            print(f"failed rollouts could not be collected: {failure!r}")
        if self._total:
            counts = ", ".join(f"{count} at {boundary}" for boundary, count in sorted(self._total.items()))
            error.add_note(f"Rollouts of this run failed: {counts}. See {self._file} and train.log next to it.")

    def _write(self, failures: list[FailedRollout]) -> None:
        for failure in failures:
            record = asdict(failure)
            trace = record.pop("traceback")
            append_record(self._file, record)
            if trace and failure.kind not in self._traced:
                self._traced.add(failure.kind)
                # The launcher redirects what is printed to train.log.
                kind = f"{failure.boundary} with {failure.type}"
                print(f"first rollout that failed at {kind}: {json.dumps(record)}\n{trace}")


def _take() -> list[FailedRollout]:
    """Remove the records that are in TransferQueue, and return them."""
    # A key that has no tag yet is still being written: TransferQueue creates it first and sets the tag then.
    tags = {key: tag for key, tag in list_keys().get(PARTITION, {}).items() if tag}
    if tags:
        tq.kv_clear(keys=list(tags), partition_id=PARTITION)
    failures = []
    for tag in tags.values():
        # A restored TransferQueue may hold tags of another release.
        with suppress(TypeError, KeyError, ValueError):
            failures.append(FailedRollout(**{**tag, "boundary": Boundary(tag["boundary"])}))
    return failures
