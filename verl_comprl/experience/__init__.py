"""The experience bank: usable without verl, Ray or training. Importing it loads no model library."""

from verl_comprl.experience.bank import ExperienceBank, Retrieval
from verl_comprl.experience.bank_config import BankConfig
from verl_comprl.experience.changes import ApplyReport
from verl_comprl.experience.embedding import Embedder, SentenceTransformerEmbedder
from verl_comprl.experience.merge import MergePass
from verl_comprl.experience.operations import (
    ParsedAnswer,
    ParseError,
    parse_answer,
    parse_distillation,
    parse_merge,
)
from verl_comprl.experience.sanitize import sanitize
from verl_comprl.experience.schema import (
    Add,
    CallKind,
    Discard,
    DistillationRequest,
    Experience,
    GenerationRecord,
    Merge,
    Outcome,
    Retain,
    Return,
    Turn,
    Update,
    derive_id,
)
from verl_comprl.experience.snapshot import SnapshotError
from verl_comprl.experience.store import ExperienceStore, StoreError

__all__ = [
    "Add",
    "ApplyReport",
    "BankConfig",
    "CallKind",
    "Discard",
    "DistillationRequest",
    "Embedder",
    "Experience",
    "ExperienceBank",
    "ExperienceStore",
    "GenerationRecord",
    "Merge",
    "MergePass",
    "Outcome",
    "ParseError",
    "ParsedAnswer",
    "Retain",
    "Retrieval",
    "Return",
    "SentenceTransformerEmbedder",
    "SnapshotError",
    "StoreError",
    "Turn",
    "Update",
    "derive_id",
    "parse_answer",
    "parse_distillation",
    "parse_merge",
    "sanitize",
]
