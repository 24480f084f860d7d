"""Messages between rollouts and the experience manager: plain dataclasses that are sent between processes."""

from dataclasses import dataclass

from verl_comprl.algorithm.utility import CRITIC_SCORES
from verl_comprl.experience.schema import DistillationRequest

NOTHING_FOUND = "Nothing found: there is no experience about this yet."
MAX_CHARS = 8000
"""Maximum length of an experience text in an actor's context; a bank whose entries may be longer sets its own.
Experience is untrusted: it is sanitized when stored and again when handed out."""

UNAVAILABLE = "No answer: the experience service did not respond in time."


class ManagerNotOpen(AttributeError):
    """A call to a manager whose process was killed, and whose bank has not been opened again."""


@dataclass(frozen=True)
class Guide:
    """One retrieved entry, as sent to a rollout."""

    status: str
    text: str | None = None
    experience_id: str | None = None
    record_id: str | None = None


@dataclass(frozen=True)
class Answer:
    """The reply to one ``search_and_ask`` query."""

    status: str
    text: str
    record_id: str | None = None
    experience_id: str | None = None
    """Entry that the answer rests on."""
    experience_text: str = ""
    entry_record_id: str | None = None
    """Generation record of that entry, if the episode's outcome rewards it too (``search_and_ask.reward_entry``)."""


@dataclass(frozen=True)
class Judgement:
    """A critic's verdict on an entry (Eq. 8), with the id of the entry's generation record if it has one."""

    verdict: str
    """``accept``, ``refine`` or ``reject``; ``unreadable`` and ``late`` count as ``accept``."""
    record_id: str | None = None

    @property
    def score(self) -> float:
        """``s`` of Eq. 8."""
        return CRITIC_SCORES.get(self.verdict, CRITIC_SCORES["accept"])


@dataclass(frozen=True)
class EpisodeReport:
    """Report of a rollout to the manager when its episode has ended."""

    request: DistillationRequest
    guided: bool
    record_ids: tuple[str, ...] = ()
    """Generation records whose text the episode used: the entry's, then those of the answers."""
    judgement: Judgement | None = None
    """Verdict of the actor, as critic, on the entry, if it was asked."""

    @property
    def prompt(self) -> str:
        """Id of the prompt that the episode is a rollout of; the episode's id is ``{uid}_{session}``."""
        return self.request.id.rpartition("_")[0]
