"""The settings of an experience bank, checked when they are made.

Owns names, defaults and limits; ``bank`` and the stores act on them.
"""

from dataclasses import dataclass
from typing import Literal

SCOPES = ("all", "environment", "task")


@dataclass(frozen=True)
class BankConfig:
    """Where a bank lives and how it answers.

    Attributes:
        path: Folder of the embedded engine, taken exclusively while the bank is open. Not used with ``url``.
        url: A Qdrant server (``http://127.0.0.1:6333``); "" for the embedded engine. Its API key is taken from the
            environment variable ``QDRANT_API_KEY``.
        collection: Name of the bank on the server; one per run.
        timeout_seconds: Longest single request to the server.
        attempts: How often a request to the server is tried.
        max_in_flight: Requests to the server at the same time.
        capacity: Entries it may hold; the oldest leave first.
        retrieval_pool: Most similar entries that Eq. 6 chooses from.
        diversity: ``λ`` of Eq. 6.
        recency_seconds: Age below which a retrieval counts as recent in Eq. 6.
        max_batch: Queries taken together at most (B).
        max_wait_ms: How long the first of them waits for others (t_max).
        scope: Which entries a query can find: all, those of its environment, or those of its task.
        max_title_chars: Longer titles are cut.
        max_content_chars: Longer contents and queries are cut.
        max_content_tokens: Longer contents are cut, where the bank is opened with a tokenizer.
        flush_seconds: How often counters are written; a killed process loses at most those of this time.
        dedup_similarity: A new entry whose cosine similarity with an entry in its scope reaches this is not added;
            0 for no such check.
        retire_min_uses: Uses after which an entry can be retired for its record; 0 never retires.
        retire_margin: How far below the free half its success rate must be for that.
    """

    path: str = ""
    url: str = ""
    collection: str = "experience"
    timeout_seconds: float = 5.0
    attempts: int = 3
    max_in_flight: int = 16
    capacity: int = 20_000
    retrieval_pool: int = 16
    diversity: float = 0.4
    recency_seconds: float = 300.0
    max_batch: int = 16
    max_wait_ms: float = 1.0
    scope: Literal["all", "environment", "task"] = "all"
    max_title_chars: int = 200
    max_content_chars: int = 4000
    max_content_tokens: int = 1024
    flush_seconds: float = 5.0
    dedup_similarity: float = 0.0
    retire_min_uses: int = 0
    retire_margin: float = 0.2

    def __post_init__(self) -> None:
        """Refuse values that cannot work."""
        if not self.path and not self.url:
            raise ValueError("comprl.bank.path must name a folder (or comprl.bank.url a Qdrant server), got ''")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"comprl.bank.url must start with http:// or https://, got {self.url!r}")
        if self.url and (not self.collection or set(self.collection) & set('<>:"/\\|?*\0')):
            raise ValueError(f'comprl.bank.collection must be a name without <>:"/\\|?*, got {self.collection!r}')
        if self.scope not in SCOPES:
            raise ValueError(f"comprl.bank.scope must be one of {', '.join(SCOPES)}, got {self.scope!r}")
        for name in (
            "attempts",
            "max_in_flight",
            "capacity",
            "retrieval_pool",
            "max_batch",
            "max_title_chars",
            "max_content_chars",
            "max_content_tokens",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"comprl.bank.{name} must be at least 1, got {getattr(self, name)}")
        for name in ("timeout_seconds", "flush_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"comprl.bank.{name} must be greater than 0, got {getattr(self, name)}")
        for name in ("diversity", "recency_seconds", "max_wait_ms", "retire_min_uses", "retire_margin"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"comprl.bank.{name} must not be negative, got {getattr(self, name)}")
        if not 0 <= self.dedup_similarity <= 1:
            raise ValueError(f"comprl.bank.dedup_similarity must be between 0 and 1, got {self.dedup_similarity}")
