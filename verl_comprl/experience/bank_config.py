"""The settings of an experience bank, checked when they are made.

Owns names, defaults and limits; ``bank`` acts on them.
"""

from dataclasses import dataclass
from typing import Literal

_SCOPES = ("all", "environment", "task")


@dataclass(frozen=True)
class BankConfig:
    """Where a bank lives and how it answers.

    Attributes:
        path: Folder, taken exclusively while the bank is open.
        capacity: Entries it may hold; the oldest leave first.
        retrieval_pool: Most similar entries that Eq. 6 chooses from.
        diversity: ``λ`` of Eq. 6.
        recency_seconds: Age below which a retrieval counts as recent in Eq. 6.
        max_batch: Queries taken together at most (B).
        max_wait_ms: How long the first of them waits for others (t_max).
        scope: Which entries a query can find: all, those of its environment, or those of its task.
        max_title_chars: Longer titles are cut.
        max_content_chars: Longer contents and queries are cut.
    """

    path: str
    capacity: int = 20_000
    retrieval_pool: int = 16
    diversity: float = 0.4
    recency_seconds: float = 300.0
    max_batch: int = 16
    max_wait_ms: float = 1.0
    scope: Literal["all", "environment", "task"] = "all"
    max_title_chars: int = 200
    max_content_chars: int = 4000

    def __post_init__(self) -> None:
        """Refuse values that cannot work."""
        if not self.path:
            raise ValueError("comprl.bank.path must name a folder, got ''")
        if self.scope not in _SCOPES:
            raise ValueError(f"comprl.bank.scope must be one of {', '.join(_SCOPES)}, got {self.scope!r}")
        for name in ("capacity", "retrieval_pool", "max_batch", "max_title_chars", "max_content_chars"):
            if getattr(self, name) < 1:
                raise ValueError(f"comprl.bank.{name} must be at least 1, got {getattr(self, name)}")
        for name in ("diversity", "recency_seconds", "max_wait_ms"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"comprl.bank.{name} must not be negative, got {getattr(self, name)}")
