"""Data of one episode: its dataset row, what accumulates while it runs, and its report to the experience manager."""

import json
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from verl_comprl.experience.schema import DistillationRequest, Outcome, Question, Turn
from verl_comprl.manager.messages import Answer, EpisodeReport, Guide, Judgement
from verl_comprl.record.redaction import redactor

if TYPE_CHECKING:  # it imports verl's agent loops, which import ours, which import this
    from verl_comprl.rollout.conversation import Conversation

EVALUATION_KEY = "comprl_evaluation"
"""Field of every submitted prompt, set by the trainer: whether it is evaluated or trained on."""

OUTPUT_KEY = "comprl_output"
"""Extra field with the :class:`OutputKind`."""

TASK_KEY = "comprl_task"
"""Extra field with the row's data source."""

UNREAD = "(no room was left to read it)"
"""Stands in the trajectory for the answer to a question after which nothing more fitted."""

TIMERS = {
    "guide": "guide",
    "ask": "tool_calls",
    "report": "report",
    "generate": "generate_sequences",
    "environment": "environment",
}
"""Parts of an episode whose seconds are measured, and their names in :attr:`Episode.timing`."""

TOKENS = ("prompt", "experience", "generated")
"""Tokens of an episode that are counted."""


class OutputKind(StrEnum):
    """Kind of an output of a rollout."""

    EPISODE = "episode"
    JUDGEMENT = "judgement"
    """What the actor wrote as critic before the episode."""
    DISTILLATION = "distillation"
    """The episode without its experience and its tool calls."""


@dataclass(frozen=True)
class Asked:
    """One question of an episode, as it is recorded."""

    turn: int
    """Number of the turn, from 0, before whose response it was asked."""
    question: Question
    status: str
    """The answer's; ``unread`` if no room was left for it, ``refused`` if there was no query."""
    answer: Answer | None


@dataclass
class Episode:
    """An episode of one rollout slot; ``row`` is the dataset row with verl's uid, session_id and global_steps."""

    row: dict[str, Any]
    slot_guided: bool
    guide: Guide = field(default_factory=lambda: Guide("free"))
    entry_text: str = ""
    """The retrieved entry's; the guide has the critic's version of it, if there was a critic."""
    judgement: Judgement | None = None
    turns: list[Turn] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    """Asked since the last turn."""
    all_asked: list[Asked] = field(default_factory=list)
    actions: list[tuple[bool, float]] = field(default_factory=list)
    """Of each turn: whether the environment took the action, and its reward."""
    unfinished: Turn | None = None
    """What the actor saw and asked when no further turn fitted; it could not act on it."""
    final_observation: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)
    """The environment's tools, which are part of its action set."""
    generated: list[tuple[list[int], list[float] | None]] = field(default_factory=list)
    """Tokens and log-probs of those turns."""
    conversation: "Conversation | None" = None
    """Tokens of the episode, once it has a prompt."""
    record_ids: list[str] = field(default_factory=list)
    """Generation records whose text the episode used: the entry's first, then those of the answers."""
    asked: dict[str, str] = field(default_factory=dict)
    """Entries that answers to questions rested on: their texts by id, without the one that guides the episode."""
    tool_calls: int = 0
    cut_turns: int = 0
    """Turns, calls of a tool included, that reached their limit of tokens before they ended."""
    cut_prompt: bool = False
    """Whether the prompt was too long: its entry was cut or, where that did not help, its beginning."""
    reported: bool | None = None
    """Whether the experience manager has confirmed that it took the finished episode; None if it was not asked to."""
    reward: float = 0.0
    info: dict[str, Any] = field(default_factory=dict)
    """The environment's latest info."""
    timing: dict[str, float] = field(default_factory=dict)
    """Seconds by part, under verl's names where verl has one."""
    tokens: Counter[str] = field(default_factory=Counter)
    """``prompt``, ``experience`` (entry and answers that were read, part of prompt and context) and ``generated``."""
    started: float = field(default_factory=time.perf_counter)

    @property
    def prompt(self) -> str:
        """Id of the prompt in this step, which its rollouts share."""
        return str(self.row["uid"])

    @property
    def id(self) -> str:
        """Unique in the run."""
        return f"{self.prompt}_{self.row['session_id']}"

    @property
    def task(self) -> str:
        """The row's data source."""
        return self.row["data_source"]

    @property
    def environment(self) -> str:
        """Name for :func:`env_adapters.make`."""
        return self.row["extra_info"]["environment"]

    @property
    def environment_options(self) -> dict[str, Any]:
        """Options for :func:`env_adapters.make`."""
        return json.loads(self.row["extra_info"]["environment_options"])

    @property
    def seed(self) -> int:
        """Seed of the environment's reset."""
        return int(self.row["extra_info"]["seed"])

    @property
    def instructions(self) -> str:
        """Rules and actions as the actor reads them: the row's system messages, then the environment's tools."""
        rules = [str(message["content"]) for message in self.row["raw_prompt"] if message["role"] == "system"]
        functions = [tool["function"] for tool in self.tools]
        tools = [f"Tool {function['name']}: {function.get('description', '')}" for function in functions]
        return "\n\n".join(rules + tools)

    @property
    def evaluation(self) -> bool:
        """Whether the episode is part of an evaluation, which changes nothing in the bank."""
        return bool(self.row.get(EVALUATION_KEY, False))

    @property
    def guided(self) -> bool:
        """Whether the actor read an entry; a guided slot without one, or with a rejected one, is trained as free."""
        return self.guide.text is not None

    @property
    def invalid_actions(self) -> int:
        """Actions that the environment refused."""
        return sum(not valid for valid, _ in self.actions)

    def add_question(self, query: str, text: str, answer: Answer | None) -> None:
        """Keep a question with the text that the actor read, and what the answer rests on, if it is one."""
        self.questions.append(Question(query=query, answer=text))
        status = answer.status if answer else "unread" if text == UNREAD else "refused"
        self.all_asked.append(Asked(len(self.turns), self.questions[-1], status, answer))
        if answer is None:
            return
        # Each once: an episode is one outcome, however often it used a text.
        records = (answer.record_id, answer.entry_record_id)
        self.record_ids += [id for id in records if id and id not in self.record_ids]
        if answer.experience_id and answer.experience_id != self.guide.experience_id:
            self.asked[answer.experience_id] = answer.experience_text

    def report(self) -> EpisodeReport:
        """Return the report for the experience manager."""
        read = {self.guide.experience_id or "": self.entry_text, **self.asked} if self.guided else {}
        request = DistillationRequest(
            id=self.id,
            task=self.task,
            environment=self.environment,
            goal=self.info["goal"],
            turns=(*self.turns, *filter(None, [self.unfinished])),
            final_observation=self.final_observation,
            instructions=self.instructions,
            outcome=Outcome(success=bool(self.info["success"]), score=float(self.info["score"])),
            experience_ids=tuple(read),
            experience_texts=tuple(read.values()),
            step=int(self.row["global_steps"]),
        )
        request = request.redacted(redactor())  # here, since the manager need not have the variables of this node
        return EpisodeReport(request, self.guided, tuple(self.record_ids), self.judgement)

    def details(self) -> dict[str, float]:
        """Return what the trainer needs of the episode in addition to tokens and reward."""
        return {
            "guided": float(self.guided),
            "slot_guided": float(self.slot_guided),
            "task_number": float(zlib.crc32(str(self.info.get("task_id", self.seed)).encode("utf-8", "replace"))),
            "success": float(self.info["success"]),
            "score": float(self.info["score"]),
            "actions": float(len(self.turns)),
            "invalid_actions": float(self.invalid_actions),
            "cut_turns": float(self.cut_turns),
            "cut_prompts": float(self.cut_prompt),
            "cut_off": float(self.unfinished is not None),
            "tool_calls": float(self.tool_calls),
            "degraded": float(self.guide.status == "degraded"),
            "unreported": float(self.reported is False),
            **{f"seconds_{part}": self.timing.get(timer, 0.0) for part, timer in TIMERS.items()},
            **{f"tokens_{part}": float(self.tokens[part]) for part in TOKENS},
        }
