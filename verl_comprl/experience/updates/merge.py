"""The periodic merge: which entries the extractor sees together.

Owns the chunking. The model call is the service's, the operations are applied by the bank.
"""

from collections.abc import Sequence

from verl_comprl.experience.schema import Experience


class MergePass:
    """One pass over the bank in chunks of ``chunk_size`` entries, each chunk's output carried into the next.

    The caller's loop::

        merge, survivors = MergePass(entries), ()
        while chunk := merge.next_chunk(survivors):
            parsed = parse_merge(await ask(chunk), listed=len(chunk))
            report = await bank.apply(parsed.operations, listed=[entry.id for entry in chunk], ...)
            survivors = [entry for id in report.surviving_ids if (entry := bank.get(id))] if parsed.format_ok else ()

    An answer that cannot be parsed keeps the originals: nothing is applied, nothing is carried. At most ``chunk_size``
    entries are carried, the newest: an extractor that retains everything would otherwise be shown the whole bank.
    """

    def __init__(self, entries: Sequence[Experience], chunk_size: int = 5) -> None:
        """Plan a pass over ``entries`` in their order."""
        if chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, got {chunk_size}")
        self._entries = list(entries)
        self._chunk_size = chunk_size
        self._position = 0

    def next_chunk(self, survivors: Sequence[Experience] = ()) -> list[Experience]:
        """Return the entries for the next call, at most ``2 * chunk_size``, carried ones first; empty at the end.

        Args:
            survivors: What the previous chunk became (retained entries, then new ones); empty if it failed.
        """
        fresh = self._entries[self._position : self._position + self._chunk_size]
        self._position += self._chunk_size
        if not fresh:
            return []
        chunk = [*survivors[-self._chunk_size :], *fresh]
        return chunk if len(chunk) > 1 else []  # a single entry has nothing to be merged with
