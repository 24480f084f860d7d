"""Random choices that depend on an id alone, so that a repeated or resumed run makes the same ones."""

from hashlib import blake2b


def draw(id: str) -> float:
    """Return a number in [0, 1), uniform over ids."""
    return int.from_bytes(blake2b(id.encode(), digest_size=8).digest()) / 2**64


def is_drawn(id: str, share: float) -> bool:
    """Return whether an id belongs to the share that is drawn."""
    return draw(id) < share
