"""Public API of the experience bank. Importing it loads neither verl nor Ray nor any model library."""

from verl_comprl.experience.bank import ExperienceBank
from verl_comprl.experience.config import BankConfig
from verl_comprl.experience.embedding.base import Embedder, make_embedder
from verl_comprl.experience.embedding.errors import EmbedderUnavailable
from verl_comprl.experience.embedding.sentence_transformer import SentenceTransformerEmbedder
from verl_comprl.experience.retrieval.retriever import Retrieval
from verl_comprl.experience.schema import (
    Add,
    Discard,
    DistillationRequest,
    Downvote,
    Experience,
    Merge,
    Outcome,
    Question,
    Retain,
    Return,
    TaskUsage,
    Turn,
    Update,
    Upvote,
    derive_id,
)
from verl_comprl.experience.store.base import ExperienceStore
from verl_comprl.experience.store.errors import LeaseLost, StoreError, StoreUnavailable
from verl_comprl.experience.transfer.snapshot import SnapshotError
from verl_comprl.experience.transfer.transfer import ImportReport
from verl_comprl.experience.updates.parsing import (
    Operation,
    ParsedAnswer,
    ParseError,
    parse_answer,
    parse_distillation,
    parse_merge,
)
from verl_comprl.experience.updates.planning import ApplyReport
from verl_comprl.experience.updates.sanitize import sanitize

__all__ = [
    "Add",
    "ApplyReport",
    "BankConfig",
    "Discard",
    "DistillationRequest",
    "Downvote",
    "Embedder",
    "EmbedderUnavailable",
    "Experience",
    "ExperienceBank",
    "ExperienceStore",
    "ImportReport",
    "LeaseLost",
    "Merge",
    "Operation",
    "Outcome",
    "ParseError",
    "ParsedAnswer",
    "Question",
    "Retain",
    "Retrieval",
    "Return",
    "SentenceTransformerEmbedder",
    "SnapshotError",
    "StoreError",
    "StoreUnavailable",
    "TaskUsage",
    "Turn",
    "Update",
    "Upvote",
    "derive_id",
    "make_embedder",
    "parse_answer",
    "parse_distillation",
    "parse_merge",
    "sanitize",
]
