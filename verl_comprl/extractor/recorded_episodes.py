"""Finished episodes from the record of a run (``docs/run_folder.md``), as the extractor distils them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from verl_comprl.experience.schema import DistillationRequest, Outcome, Question, Turn, Whole, derive_id
from verl_comprl.record.reader import EPISODES
from verl_comprl.record.step_files import StepFiles


class _Asked(BaseModel):
    query: str
    answer: str


class _Played(BaseModel):
    observation: str
    response: str = ""
    questions: list[_Asked] = []

    def turn(self) -> Turn:
        questions = tuple(Question(query=asked.query, answer=asked.answer) for asked in self.questions)
        return Turn(observation=self.observation, response=self.response, questions=questions)


class RecordedEpisode(BaseModel):
    """One line of ``RUN/episodes/step_N.jsonl.gz``; other keys of it are ignored."""

    model_config = ConfigDict(frozen=True)

    id: str
    turns: list[_Played]
    outcome: Outcome
    goal: str
    task: str = ""
    environment: str = ""
    instructions: str = ""
    """Empty if the row could not be read, or the record is of a time before it had them."""
    unfinished: _Played | None = None
    final_observation: str = ""
    step: Whole = 0

    def request(self) -> DistillationRequest:
        """Return the episode in the form that it had in its run, without the entries it read: of another bank."""
        # With the content: deterministic runs of one seed give their episodes the same ids.
        return DistillationRequest(
            id=f"{self.id}:{derive_id(self.model_dump_json())[:8]}",
            task=self.task,
            environment=self.environment,
            goal=self.goal,
            turns=tuple(played.turn() for played in (*self.turns, self.unfinished) if played),
            outcome=self.outcome,
            final_observation=self.final_observation,
            instructions=self.instructions,
            step=self.step,
        )


def is_recorded(fields: Any) -> bool:
    """Return whether a line is an episode of a run's record."""
    return isinstance(fields, Mapping) and "turns" in fields and "messages" not in fields


def is_to_be_distilled(fields: Mapping[str, Any]) -> bool:
    """Return whether a recorded episode is one to learn from: it was played to its end, and not to evaluate."""
    return fields.get("outcome") is not None and fields.get("kind") != "evaluation"


def step_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a run, or of its folder of episodes, in the order of steps.

    Raises:
        FileNotFoundError: If it has none.
    """
    files = StepFiles(folder / EPISODES if (folder / EPISODES).is_dir() else folder)
    if not files.steps():
        raise FileNotFoundError(f"{folder} has no episodes of a run: no {EPISODES}/step_N.jsonl.gz")
    yield from map(files.file, files.steps())
