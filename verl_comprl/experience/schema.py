"""Records exchanged between actor, extractor and bank: entries, operations, distillation requests.

Owns the shape of the data. Answers are parsed into operations in ``updates.parsing``, entries are kept in ``store``.
"""

import uuid
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from verl_comprl.record.lines import encode

SCHEMA_VERSION = 2
READABLE_VERSIONS = (1, 2)
"""Version 1 (release 0.1.0): an entry has one task and one environment, and counts the uses of all tasks together."""

ASKED_WEIGHT = 0.5
"""Default weight of an episode that read an entry only through an answer, relative to one that it guided."""

MAX_ANCESTORS = 32
"""Episodes that read the same entry are distilled one after the other, and each may replace it: a few in a step."""

_NAMESPACE = uuid.UUID("8b1d6a52-5f0e-4a53-9a55-0d6f3f6f6c11")


def derive_id(*parts: str | int) -> str:
    """Return the UUID5 of ``parts``. Equal parts give equal ids, so that writing the same entry twice is harmless."""
    name = "\x1f".join(str(part) for part in parts)
    # Lone surrogates are escaped: a model or an agent's log may have cut an emoji in half.
    return str(uuid.uuid5(_NAMESPACE, name.encode("utf-8", "backslashreplace").decode()))


def is_uuid(id: str) -> bool:
    """Return whether ``id`` is a UUID in its usual spelling; stores take no other ids."""
    try:
        return str(uuid.UUID(id)) == id
    except ValueError:
        return False


def canonical_id(id: str) -> str:
    """Return the usual spelling of a UUID, since an engine takes all spellings for one point; other ids as they are."""
    try:
        return str(uuid.UUID(id))
    except ValueError:
        return id


Id = Annotated[str, AfterValidator(canonical_id)]
Ids = Annotated[tuple[str, ...], AfterValidator(lambda ids: tuple(map(canonical_id, ids)))]
Ancestors = Annotated[
    tuple[str, ...], AfterValidator(lambda ids: tuple(dict.fromkeys(map(canonical_id, ids)))[:MAX_ANCESTORS])
]
Whole = Annotated[int, Field(gt=-(2**62), lt=2**62)]
Count = Annotated[int, Field(ge=0, lt=2**62)]
"""A table of a snapshot holds integers below 2**63: what is counted later must fit, too."""
Weighted = Annotated[float, Field(ge=0, lt=2.0**62, allow_inf_nan=False)]
"""A count of episodes, some of which weigh less than 1."""
LAST_SECOND = 2.0**33
"""Year 2242. Later times have no microseconds, by which entries of one call are told apart."""
Seconds = Annotated[float, Field(ge=0, lt=LAST_SECOND, allow_inf_nan=False)]
"""Since the epoch."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Outcome(BaseModel):
    """Outcome of an episode: ``success`` determines the utility of its experience, ``score`` is only logged."""

    model_config = ConfigDict(frozen=True)

    success: bool
    score: float = 0.0


class TaskUsage(_Record):
    """Outcomes of the episodes of one task that read an entry."""

    task: str
    uses: Count = 0
    """Episodes that the entry guided."""
    successes: Count = 0
    asked: Count = 0
    """Episodes that read the entry only through answers of ``search_and_ask`` that rested on it."""
    asked_successes: Count = 0
    compared: Weighted = 0.0
    """Those of all these episodes in whose steps the success of the task's free half was known. In this and the next
    two an episode that read the entry only through an answer has its weight, ``bank.asked_weight``."""
    compared_successes: Weighted = 0.0
    free_successes: Weighted = 0.0
    """Successes of ``compared`` episodes without experience: the sum of the free half's success rates in their steps.
    The actor learns, so that its later success says nothing about what it would have done then."""

    @model_validator(mode="after")
    def _check_successes(self) -> Self:
        # With more successes than episodes an entry would win every retrieval of an evaluation.
        compared = max(self.compared_successes, self.free_successes)
        if self.successes > self.uses or self.asked_successes > self.asked or compared > self.compared:
            raise ValueError("more successes than episodes")
        if self.compared > self.uses + self.asked:
            raise ValueError("more comparisons than episodes")
        return self

    def weighted(self, asked_weight: float) -> tuple[float, float]:
        """Return episodes and successes, with those of answers times ``asked_weight``."""
        return self.uses + asked_weight * self.asked, self.successes + asked_weight * self.asked_successes


Names = Annotated[tuple[str, ...], AfterValidator(lambda names: tuple(sorted(set(names))))]


class Experience(_Record):
    """One entry ``m`` of the bank, with its provenance and its counters.

    While a bank is open, the counters of its entries in memory are newer than those in the store.
    """

    schema_version: Whole = SCHEMA_VERSION
    id: Id
    title: str
    content: str
    tasks: Names = ()
    """Tasks of the episodes that the text comes from, sorted: several after an update or a merge across tasks."""
    environments: Names = ()
    """Environments of these episodes, sorted."""
    record_id: str = ""
    """Generation record of the extractor call that wrote this text; empty for imported entries."""
    created_step: Whole = 0
    created_at: Seconds = 0.0
    weight_version: Whole = 0
    """Version of the extractor weights that wrote the text."""
    source_trajectory: str = ""
    source_success: bool | None = None
    parents: Ids = ()
    """Entries that this one replaced (update, merge)."""
    ancestors: Ancestors = ()
    """Entries that this one stands for, newest first: the one that it replaced, the one before that, and so on, up to
    ``MAX_ANCESTORS``; none before several were replaced at once, since who read one of those has not read the others.
    An episode that waits with one of them finds this entry, also in a bank that was opened again."""
    usage: tuple[TaskUsage, ...] = ()
    """Outcomes of the episodes that read the entry, one item per task of theirs, sorted by task."""
    retrievals: Count = 0
    last_retrieved_at: Seconds = 0.0
    trainings: Count = 0
    """CISPO samples of the generation record that wrote the entry."""
    last_trained_step: Annotated[int | None, Field(gt=-(2**62), lt=2**62)] = None
    upvotes: Count = 0
    downvotes: Count = 0
    quarantined: str = ""
    """Reason for which the entry is excluded from retrieval; empty if it is not."""

    @property
    def text(self) -> str:
        """The text that an actor reads and, unless the embedder is told otherwise, that is embedded."""
        return f"{self.title}\n{self.content}" if self.title else self.content

    @property
    def uses(self) -> int:
        """Episodes that the entry guided."""
        return sum(usage.uses for usage in self.usage)

    @property
    def successes(self) -> int:
        """Successful episodes among ``uses``."""
        return sum(usage.successes for usage in self.usage)

    @property
    def asked(self) -> int:
        """Episodes that read the entry only through answers that rested on it."""
        return sum(usage.asked for usage in self.usage)

    @property
    def asked_successes(self) -> int:
        """Successful episodes among ``asked``."""
        return sum(usage.asked_successes for usage in self.usage)

    @property
    def success_rate(self) -> float | None:
        """``successes / uses``, or None for an entry that was never used."""
        return self.successes / self.uses if self.uses else None

    @property
    def posterior_success(self) -> float:
        """``posterior`` with the defaults."""
        return self.posterior()

    def posterior(self, asked_weight: float = ASKED_WEIGHT, prior: float = 0.5) -> float:
        """Return the posterior mean of the success probability with this entry.

        An entry that was never read has ``prior``, which weighs as much as two episodes: few episodes move it less than
        many.

        Args:
            asked_weight: Weight of an episode that read the entry only through an answer; one that it guided weighs 1.
            prior: Expected success with an entry of which nothing is known. 0.5 is the uniform prior, Beta(1, 1).
        """
        episodes, successes = map(
            sum, zip((0, 0), *(usage.weighted(asked_weight) for usage in self.usage), strict=True)
        )
        return (successes + 2 * prior) / (episodes + 2)

    @model_validator(mode="before")
    @classmethod
    def _with_ancestors(cls, fields: Any) -> Any:
        """Read an entry that was written before it had ``ancestors``: one of them is known."""
        if not isinstance(fields, dict) or fields.get("ancestors") is not None or len(fields.get("parents") or ()) != 1:
            return fields
        return {**fields, "ancestors": fields["parents"]}

    @model_validator(mode="before")
    @classmethod
    def _from_version_1(cls, fields: Any) -> Any:
        """Read an entry of version 1: its task is the only one, and all its uses are counted as that task's."""
        if not isinstance(fields, dict) or fields.get("schema_version") != 1:
            return fields
        fields = {"task": "", "environment": "", "uses": 0, "successes": 0, **fields, "schema_version": SCHEMA_VERSION}
        task, environment = fields.pop("task"), fields.pop("environment")
        usage = {"task": task, "uses": fields.pop("uses"), "successes": fields.pop("successes")}
        fields["tasks"], fields["environments"] = [task] if task else [], [environment] if environment else []
        return {**fields, "usage": [usage] if usage["uses"] else []}


class Add(_Record):
    """Add a new entry."""

    operation: Literal["add"] = "add"
    title: str
    content: str


class Update(_Record):
    """Replace the listed entries by one new entry. ``ids`` are 1-based indices into the entries the prompt listed."""

    operation: Literal["update"] = "update"
    ids: tuple[int, ...]
    title: str
    content: str


class Upvote(_Record):
    """Optional vote: the listed entries helped."""

    operation: Literal["upvote"] = "upvote"
    ids: tuple[int, ...]


class Downvote(_Record):
    """Optional vote: the listed entries misled."""

    operation: Literal["downvote"] = "downvote"
    ids: tuple[int, ...]


class Return(_Record):
    """Change nothing: there was nothing to learn from the episode."""

    operation: Literal["return"] = "return"


class Retain(_Record):
    """Merge pass: keep the listed entries as they are."""

    operation: Literal["retain"] = "retain"
    ids: tuple[int, ...]


class Merge(_Record):
    """Merge pass: replace the listed entries by one new entry."""

    operation: Literal["merge"] = "merge"
    ids: tuple[int, ...]
    title: str
    content: str


class Discard(_Record):
    """Merge pass: remove the listed entries."""

    operation: Literal["discard"] = "discard"
    ids: tuple[int, ...]


class Question(_Record):
    """One ``search_and_ask`` call of the actor, and the answer that it read."""

    query: str
    answer: str


class Turn(_Record):
    """One step of the actor: observation and response, without tool calls and injected experience."""

    observation: str
    response: str
    questions: tuple[Question, ...] = ()
    """Asked between the two."""


class DistillationRequest(_Record):
    """``(τ, g, o, m)`` of a finished episode. ``id`` is the episode's, by which a second delivery is recognised."""

    id: str
    task: str
    environment: str
    goal: str
    turns: tuple[Turn, ...]
    outcome: Outcome
    final_observation: str = ""
    """``s_T``: what the last action led to, such as a verdict or a final page; "" if the environment showed nothing."""
    instructions: str = ""
    """Rules and actions of the environment, as the actor read them."""
    experience_ids: tuple[str, ...] = ()
    """Entries that the episode read: the one that guided it, then those that answers to its questions rested on."""
    experience_texts: tuple[str, ...] = ()
    """Their texts when they were retrieved. By the time of distillation other episodes may have replaced them."""
    step: int = 0

    def redacted(self, redact: Callable[[bytes], bytes]) -> Self:
        """Return the request as it may be kept: an environment can show the variables of the run.

        Args:
            redact: Removes secrets from a line of JSON.
        """
        line = encode(self.model_dump(mode="json"))
        kept = redact(line)
        return self if kept == line else self.model_validate_json(kept)
