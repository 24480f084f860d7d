"""Applies the operations of one extractor call to an open bank.

Owns what happens while the call is the only writer. The meaning of the operations is in ``updates.planning``; texts are
sanitised and embedded before, by ``bank``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from verl_comprl.experience.config import BankConfig
from verl_comprl.experience.embedding.base import document
from verl_comprl.experience.ledger import Ledger
from verl_comprl.experience.schema import Add, Experience, Merge, Update
from verl_comprl.experience.updates.parsing import Operation
from verl_comprl.experience.updates.planning import ApplyReport, plan_changes
from verl_comprl.experience.updates.quality import duplicates


def new_documents(operations: Sequence[Operation], identity: Mapping[str, Any]) -> dict[int, str]:
    """Return what is embedded of the new texts of a call, by the positions of their operations.

    Args:
        operations: With sanitised texts.
        identity: Identity of the embedder.
    """
    return {
        position: document(Experience(id="", title=new.title, content=new.content), identity)
        for position, new in enumerate(operations)
        if isinstance(new, Add | Update | Merge)
    }


async def apply_operations(
    ledger: Ledger,
    operations: Sequence[Operation],
    vectors: Mapping[int, np.ndarray],
    *,
    call_id: str,
    listed: Sequence[str],
    provenance: Mapping[str, Any],
    scope: tuple[str | None, str | None],
    config: BankConfig,
) -> ApplyReport:
    """Carry out ``operations``, unless the call was applied before; to be called as the ledger's only writer.

    Args:
        ledger: The entries and their store.
        operations: With sanitised texts.
        vectors: Vectors of the new texts, by the positions of their operations.
        call_id: The extractor call.
        listed: Ids of the entries in the prompt, in its order.
        provenance: Further fields of new entries.
        scope: Task and environment within which near-copies are looked for; None for any.
        config: Settings of the bank.

    Raises:
        StoreError: If the store failed; the call can be repeated.
    """
    # Whether the call is known, and which texts are near-copies, is decided in here, as the only writer. Calls embed at
    # the same time: checked before that, two of them would each find nothing of the other.
    table = ledger.table
    if table.was_applied(call_id):
        # Not from the operations: a process that was killed after the write has the episode read again, and the second
        # answer may have other texts, or none that can be read.
        entries = [entry for entry in table.by_id.values() if entry.record_id == call_id]
        written = tuple(entry.id for entry in entries)
        surviving = tuple(id for id in listed if id in table.by_id and id not in written)
        replaced = {parent: None for entry in entries for parent in entry.parents if parent not in table.by_id}
        return ApplyReport(
            new_ids=written, surviving_ids=surviving + written, removed_ids=tuple(replaced), repeated=True
        )
    additions = {at: vectors[at] for at, operation in enumerate(operations) if isinstance(operation, Add)}
    changes = plan_changes(
        table.by_id,
        operations,
        call_id=call_id,
        listed=listed,
        provenance={**provenance, "created_at": table.now()},
        capacity=config.capacity,
        current=table.current,
        duplicates=await duplicates(ledger.store, additions, threshold=config.dedup_similarity, scope=scope),
    )
    if changes.new or changes.removed:
        rows = np.array([vectors[position] for position in changes.positions], dtype=np.float32)
        await ledger.change(changes.new, rows, changes.removed)
    for id, votes in changes.upvotes.items():
        table.set_counters(id, upvotes=table.by_id[id].upvotes + votes)
    for id, votes in changes.downvotes.items():
        table.set_counters(id, downvotes=table.by_id[id].downvotes + votes)
    # Only now: a call whose write failed must not count as applied, or repeating it would change nothing.
    table.applied[call_id] = None
    return changes.report
