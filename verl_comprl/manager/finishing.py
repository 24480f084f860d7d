"""Finishes distillations of a manager that was killed after the bank, and before the queue, knew of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from verl_comprl.experience import ExperienceBank
from verl_comprl.experience.schema import DistillationRequest, Experience, derive_id
from verl_comprl.experience.updates.planning import ApplyReport
from verl_comprl.extractor.generation_record import CallKind
from verl_comprl.manager.journal import Journal


@dataclass(frozen=True)
class Finishing:
    """Looks for what the process before has distilled in its bank and journal; a queue's ``Finish``."""

    bank: ExperienceBank
    journal: Journal

    def __call__(self, requests: Sequence[DistillationRequest]) -> set[str]:
        """Note what the bank has of the requests; returns the episodes that have been distilled, also to nothing."""
        written: dict[str, list[Experience]] = {}
        for entry in self.bank.entries():
            written.setdefault(entry.record_id, []).append(entry)
        calls = {derive_id(CallKind.DISTILL, request.id): request for request in requests}
        for call, request in calls.items():
            if entries := written.get(call):  # noted again if they were: perhaps only a part of it was
                self.journal.wrote(request, entries)
                parents = dict.fromkeys(parent for entry in entries for parent in entry.parents)
                gone = tuple(parent for parent in parents if self.bank.get(parent) is None)
                self.journal.removed(ApplyReport(removed_ids=gone), entries, step=request.step, call=call)
        noted = self.journal.distilled()
        return {request.id for call, request in calls.items() if call in written or request.id in noted}
