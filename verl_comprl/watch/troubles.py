"""Metrics that say that something is wrong, in words; docs/metrics.md says what to do."""

from collections import Counter
from collections.abc import Sequence

from verl_comprl.display.printable import printable
from verl_comprl.display.progress import Metrics

_LATEST = {
    "comprl/degraded": "guided episodes of this step got nothing: store or embedder failed",
    "comprl/extractor/away": "the extractor cannot be asked",
    "comprl/extractor/given_up": "the extractor is no longer trained: too many updates failed",
    "comprl/extractor/failed": "updates of the extractor failed",
    "comprl/collect_timeouts": "steps that the manager did not close in time",
    "comprl/saves_failed": "checkpoints left out: the disk is full",
    "comprl/bank/away": "the bank's store or embedder cannot be reached, distillations wait",
    "comprl/bank/degraded": "retrievals failed",
    "comprl/bank/counter_flush_failures": "writes of counters or removals failed",
    "comprl/queue/dead": "distillations given up",
    "comprl/queue/dropped": "episodes dropped from the queue",
    "comprl/queue/disk_failures": "episodes could not be written to disk",
}
"""Metric of the latest step → what a value above 0 means."""
_FLAGS = ("comprl/bank/away", "comprl/extractor/away", "comprl/extractor/given_up")
_FAILED = "comprl/rollouts/failed/"
_CALLS = "comprl/failures/"


def troubles(steps: Sequence[Metrics]) -> list[str]:
    """Return a line for each kind of trouble in the steps of a run."""
    if not steps:
        return []
    latest = steps[-1]
    lines = [
        text if name in _FLAGS else f"{latest[name]:.0f} {text}"
        for name, text in _LATEST.items()
        if latest.get(name, 0.0) > 0
    ]
    failed: Counter[str] = Counter()
    for step in steps:
        failed.update({name: int(value) for name, value in step.items() if name.startswith(_FAILED) and value > 0})
    lines += [f"{count} rollouts failed: {name.removeprefix(_FAILED)}" for name, count in failed.items()]
    lines += [
        f"{value:.0f} calls of the manager failed: {printable(name.removeprefix(_CALLS))}"
        for name, value in latest.items()
        if name.startswith(_CALLS) and value > 0
    ]
    return lines
