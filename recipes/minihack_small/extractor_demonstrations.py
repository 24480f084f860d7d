"""Scripted answers of the extractor, as supervised data.

Owns what a warm-started extractor writes: well-formed answers to all three kinds of call, whose lessons are helpful,
neutral and misleading about equally often and do not depend on the episode. Training then has to find out which lessons
are worth writing. The lessons' wording is in ``lessons``, the prompts are in ``verl_comprl.extractor.prompts``.
"""

import random
from collections.abc import Iterator, Sequence

from recipes.minihack_small.actor_demonstrations import QUERIES, VARIANT, Demonstration
from recipes.minihack_small.lessons import WORTHS, Lesson, Worth, draw_lesson
from recipes.tiny_models.answers import Operation, listed_entry, operations_answer, text_answer, text_fields
from verl_comprl.experience.schema import TaskUsage
from verl_comprl.extractor.prompts import (
    Message,
    answer_messages,
    distill_messages,
    merge_messages,
    render_trajectory,
)

MAX_MERGED = 4
"""Entries in one merge call."""
MAX_SIMILAR = 3
"""Entries listed in addition to those that the episode read, as ``comprl.extractor.list_nearest``."""

_TASK = f"minihack/{VARIANT}"
_SUCCESS: dict[Worth, float] = {"helpful": 0.8, "neutral": 0.4, "misleading": 0.2}
"""Success in the records of entries."""

_FOUND = ("The agent found the staircase.", "The episode was a success.")
_LOST = ("The agent did not reach the staircase.", "The episode was a failure.")


def distillations(demonstrations: Sequence[Demonstration], *, seed: int) -> Iterator[list[Message]]:
    """Yield the call on each episode with a random answer: an add, an update of a listed entry, or a return.

    Args:
        demonstrations: Finished episodes.
        seed: Chooses the answers.
    """
    rng = random.Random(seed)
    for episode in demonstrations:
        read = [episode.lesson.text] if episode.lesson else []
        similar = [_draw(rng).text for _ in range(rng.randint(0, MAX_SIMILAR))]
        listed = range(1, len(read) + len(similar) + 1)
        trajectory = render_trajectory(episode.turns, episode.final_observation)
        messages = distill_messages(
            episode.instructions, episode.goal, read, trajectory, episode.success, similar=similar
        )
        reason = rng.choice(_FOUND if episode.success else _LOST)
        kind = rng.choices(("add", "update", "return"), (5, 4 if listed else 0, 1))[0]
        if kind == "return":
            nothing = f"{reason} There is nothing new to learn."
            yield [*messages, operations_answer([{"operation": "return"}], reason=nothing)]
            continue
        first = {"operation": kind, "ids": [rng.choice(listed)]} if kind == "update" else {"operation": kind}
        operations = [{**first, **text_fields(_draw(rng))}]
        if rng.random() < 0.15:
            operations.append({"operation": "add", **text_fields(_draw(rng))})
        yield [*messages, operations_answer(operations, reason=f"{reason} This is worth remembering.")]


def merges(count: int, *, seed: int) -> Iterator[list[Message]]:
    """Yield calls on 2 to 4 entries with a random answer: runs of entries are retained, merged or discarded.

    Args:
        count: Number of calls.
        seed: Chooses entries and answers.
    """
    rng = random.Random(seed)
    for _ in range(count):
        lessons = [_draw(rng) for _ in range(rng.randint(2, MAX_MERGED))]
        ids = list(range(1, len(lessons) + 1))
        cuts = sorted(rng.sample(ids[1:], rng.choice((0, 0, 1, 1, 2)[: len(ids) + 2])))
        runs = [ids[start - 1 : end - 1] for start, end in zip([1, *cuts], [*cuts, len(ids) + 1], strict=True)]
        operations = [_merge_operation(run, lessons, rng) for run in runs]
        entries = [_with_record(lesson, rng) for lesson in lessons]
        answer = operations_answer(operations, reason=f"There are entries 1 to {len(ids)}.")
        yield [*merge_messages(entries), answer]


def answers(count: int, *, seed: int) -> Iterator[list[Message]]:
    """Yield ``search_and_ask`` calls, answered with the entry's content.

    Args:
        count: Number of calls.
        seed: Chooses entries and queries.
    """
    rng = random.Random(seed)
    for _ in range(count):
        lesson = _draw(rng)
        messages = answer_messages(lesson.text, rng.choice(QUERIES))
        yield [*messages, text_answer(lesson.content)]


def _draw(rng: random.Random) -> Lesson:
    return draw_lesson(rng, rng.choice(WORTHS))


def _with_record(lesson: Lesson, rng: random.Random) -> str:
    """Return a lesson as a merge lists it, with a record that fits its worth."""
    uses, asked = rng.choice((0, rng.randint(1, 12))), rng.choice((0, 0, rng.randint(1, 4)))
    successes, asked_successes = (sum(rng.random() < _SUCCESS[lesson.worth] for _ in range(n)) for n in (uses, asked))
    usage = TaskUsage(task=_TASK, uses=uses, successes=successes, asked=asked, asked_successes=asked_successes)
    step, free_success = rng.randint(0, 30), rng.randint(1, 9) / 10
    return listed_entry(lesson.model_copy(update={"tasks": (_TASK,)}), usage, free_success=free_success, step=step)


def _merge_operation(ids: list[int], lessons: Sequence[Lesson], rng: random.Random) -> Operation:
    kind = rng.choices(("retain", "merge", "discard"), (3, 3 if len(ids) > 1 else 0, 1))[0]
    text = text_fields(lessons[rng.choice(ids) - 1]) if kind == "merge" else {}
    return {"operation": kind, "ids": ids, **text}
