"""Statistics of an open bank for logs: retrievals, latencies, operations.

Owns the numbers since the bank was opened; the counters of single entries are fields of the entries.
"""

from collections import Counter, deque
from typing import Any, Literal

import numpy as np

from verl_comprl.experience.updates.planning import ApplyReport

Status = Literal["found", "nothing", "degraded"]

_WINDOW = 4096
_OPERATIONS = (
    "added",
    "updated",
    "merged",
    "retained",
    "discarded",
    "returned",
    "upvoted",
    "downvoted",
    "rejected",
    "evicted",
)


class BankStatistics:
    """Counts since opening; latencies over the last ``_WINDOW`` retrievals."""

    def __init__(self) -> None:
        """Start at zero."""
        self._statuses: Counter[str] = Counter()
        self._operations: Counter[str] = Counter(dict.fromkeys(_OPERATIONS, 0))
        self._rejections: Counter[str] = Counter()
        self._seconds: deque[float] = deque(maxlen=_WINDOW)

    def count_retrieval(self, status: Status, seconds: float) -> None:
        """Count one retrieval."""
        self._statuses[status] += 1
        self._seconds.append(seconds)

    def count_operations(self, report: ApplyReport) -> None:
        """Count the operations of one applied call."""
        self._operations.update({name: getattr(report, name) for name in _OPERATIONS})
        self._rejections.update(report.rejections)

    def as_dict(self) -> dict[str, Any]:
        """Return retrieval counts, hit rate (found / retrievals), latencies in ms, and operation counts."""
        retrievals = self._statuses.total()
        p50, p95 = np.percentile(self._seconds, (50, 95)) * 1000 if self._seconds else (0.0, 0.0)
        return {
            "retrievals": retrievals,
            "found": self._statuses["found"],
            "nothing": self._statuses["nothing"],
            "degraded": self._statuses["degraded"],
            "hit_rate": self._statuses["found"] / retrievals if retrievals else 0.0,
            "latency_p50_ms": float(p50),
            "latency_p95_ms": float(p95),
            "operations": dict(self._operations),
            "rejections": dict(self._rejections),
        }
