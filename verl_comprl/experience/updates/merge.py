"""Splits a bank into the chunks that the extractor merges periodically.

Owns the chunking. The extractor is called by the caller, operations are applied by ``bank``.
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

    If an answer cannot be parsed, its chunk stays as it is: nothing is applied and nothing is carried. At most the
    ``chunk_size`` newest survivors are carried: an extractor that retains everything would otherwise get ever longer
    prompts.
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
            survivors: Entries that the previous chunk left (retained ones, then new ones); empty if it failed.
        """
        fresh = self._entries[self._position : self._position + self._chunk_size]
        self._position += self._chunk_size
        if not fresh:
            return []
        chunk = [*survivors[-self._chunk_size :], *fresh]
        return chunk if len(chunk) > 1 else []  # a single entry cannot be merged
