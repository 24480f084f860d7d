"""Counters of the experience manager over a whole run, and the metrics made of them and of its parts."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from verl_comprl.algorithm.utility import gini
from verl_comprl.experience import ExperienceBank
from verl_comprl.extractor.buffer import TrainingBuffer
from verl_comprl.extractor.credit import Credit
from verl_comprl.extractor.queue import DistillationQueue


@dataclass
class Totals:
    """What the manager counts; continued by a resumed run."""

    operations: Counter[str] = field(default_factory=Counter)
    """Operations counted by earlier processes of this run; the bank counts those since it was opened."""
    parse_failures: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    guides: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    distillations: Counter[str] = field(default_factory=Counter)
    """Episodes: ``written``, ``return`` (nothing to learn), ``unreadable``; ``skipped`` were not drawn."""
    tokens: Counter[str] = field(default_factory=Counter)
    """Of the extractor's calls: ``prompt`` and ``response``."""
    merges: int = 0

    def all_operations(self, bank: ExperienceBank) -> Counter[str]:
        """Return the operations of the whole run."""
        return self.operations + Counter(bank.statistics()["operations"])

    def state(self, bank: ExperienceBank) -> dict[str, Any]:
        """Return all counts as JSON."""
        return vars(self) | {"operations": self.all_operations(bank)}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Self:
        """Return the counts of which :meth:`state` was saved."""
        counters = {name: Counter(counts) for name, counts in state.items() if name != "merges"}
        return cls(**counters, merges=state["merges"])


def manager_metrics(
    totals: Totals, bank: ExperienceBank, queue: DistillationQueue, buffer: TrainingBuffer, credit: Credit, step: int
) -> dict[str, float]:
    """Return all metrics of the manager; counts are of the whole run (retrievals: since the bank was opened)."""
    metrics = {f"bank/{name}": float(value) for name, value in bank.statistics().items() if not isinstance(value, dict)}
    entries = bank.entries()
    if entries:
        # An imported entry has the step of the run that wrote it.
        metrics["bank/age"] = sum(max(0, step - entry.created_step) for entry in entries) / len(entries)
        metrics["bank/retrieval_gini"] = gini([entry.retrievals for entry in entries])
    operations = totals.all_operations(bank)
    if written := sum(operations[name] for name in ("added", "updated", "merged")):
        metrics["bank/uses_per_entry"] = totals.guides["found"] / written
    if readable := totals.distillations["written"] + totals.distillations["return"]:
        metrics["distillations/return_share"] = totals.distillations["return"] / readable
    for name, counter in (
        ("operations", operations),
        ("parse_failures", totals.parse_failures),
        ("failures", totals.failures),
        ("guides", totals.guides),
        ("answers", totals.answers),
        ("verdicts", totals.verdicts),
        ("distillations", totals.distillations),
        ("extractor/tokens", totals.tokens),
    ):
        metrics |= {f"{name}/{kind}": float(count) for kind, count in counter.items()}
    return metrics | {
        "queue/depth": float(len(queue)),
        "queue/lag": float(step - oldest if (oldest := queue.oldest_step) is not None else 0),
        "queue/on_disk": float(queue.on_disk),
        **{f"queue/{name}": float(count) for name, count in queue.counts.items()},
        "buffer/samples": float(len(buffer)),
        "buffer/records": float(buffer.record_count),
        "buffer/stale": float(buffer.stale),
        "buffer/dropped_failures": float(buffer.dropped_failures),
        "buffer/dropped_outcomes": float(buffer.dropped_outcomes),
        "buffer/waiting": float(len(credit)),
        "merge/passes": float(totals.merges),
    }
