"""Metrics that say that something is wrong, in words; docs/metrics.md says what to do."""

from collections import Counter
from collections.abc import Sequence

from verl_comprl.display.printable import printable
from verl_comprl.display.progress import Metrics
from verl_comprl.display.units import counted

_STATES = {
    "comprl/extractor/away": "the extractor cannot be asked",
    "comprl/extractor/given_up": "the extractor is no longer trained: too many updates failed",
    "comprl/bank/away": "the bank's store or embedder cannot be reached, distillations wait",
}
"""Metric of the latest step → what a value above 0 means."""
_COUNTS = {
    "comprl/degraded": ("guided episode", "of this step got nothing: store or embedder failed"),
    "comprl/extractor/failed": ("update", "of the extractor failed"),
    "comprl/collect_timeouts": ("step", "that the manager did not close in time"),
    "comprl/saves_failed": ("checkpoint", "left out (train.log says why)"),
    "comprl/bank/degraded": ("retrieval", "failed"),
    "comprl/bank/counter_flush_failures": ("write", "of counters or removals failed"),
    "comprl/queue/dead": ("distillation", "given up"),
    "comprl/queue/dropped": ("episode", "dropped from the queue"),
    "comprl/queue/disk_failures": ("episode", "could not be written to disk, or read from it"),
}
"""Metric of the latest step → what it counts."""
_FAILED = "comprl/rollouts/failed/"
_CALLS = "comprl/failures/"


def troubles(steps: Sequence[Metrics]) -> list[str]:
    """Return a line for each kind of trouble in the steps of a run."""
    if not steps:
        return []
    latest = steps[-1]
    lines = [text for name, text in _STATES.items() if latest.get(name, 0.0) > 0]
    lines += [_count(latest[name], *texts) for name, texts in _COUNTS.items() if latest.get(name, 0.0) > 0]
    failed: Counter[str] = Counter()
    for step in steps:
        failed.update({name: int(value) for name, value in step.items() if name.startswith(_FAILED) and value > 0})
    lines += [_count(number, "rollout", f"failed: {name.removeprefix(_FAILED)}") for name, number in failed.items()]
    lines += [
        _count(value, "call", f"of the manager failed: {printable(name.removeprefix(_CALLS))}")
        for name, value in latest.items()
        if name.startswith(_CALLS) and value > 0
    ]
    return lines


def _count(number: float, noun: str, what: str) -> str:
    return f"{counted(number, noun, f'{noun}s')} {what}"
