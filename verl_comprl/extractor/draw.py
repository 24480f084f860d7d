"""Draws a share of the episodes by their ids, so that the choice is the same after a resume and on every machine."""

import hashlib


def is_drawn(id: str, share: float) -> bool:
    """Return whether ``id`` is among the drawn ones: true for ``share`` of all ids, independently of one another."""
    digest = hashlib.blake2b(id.encode(), digest_size=8).digest()
    return int.from_bytes(digest) < share * 2**64
