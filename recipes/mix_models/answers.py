"""Scripted answers of the extractor, as supervised data: well-formed, and about the family of the episode.

What is worth writing is for training to find out: the lessons do not depend on the episode's outcome.
"""

import random
from collections.abc import Iterable, Iterator, Sequence

from recipes.mix_models.demonstrations import Demonstration
from recipes.mix_models.families import FAMILIES, Family
from recipes.tiny_models.answers import (
    Operation,
    listed_entry,
    operations_answer,
    retain_others,
    text_answer,
    text_fields,
)
from verl_comprl.experience.schema import Experience, TaskUsage
from verl_comprl.extractor.prompts import (
    Message,
    answer_messages,
    distill_messages,
    merge_messages,
    render_trajectory,
)

_REASON = "This is worth remembering."
_MAX_SIMILAR = 3
_MAX_MERGED = 4
"""Two chunks of ``comprl.merge.chunk`` in recipes/shared/cpu.yaml."""


def distillations(
    rng: random.Random,
    episodes: Iterable[Demonstration],
    families: Sequence[Family] = FAMILIES,
    *,
    max_similar: int = _MAX_SIMILAR,
) -> Iterator[list[Message]]:
    """Yield the call on each episode with an add, or an update of a listed entry.

    Args:
        rng: Draws all that is random.
        episodes: Played episodes.
        families: Families whose lessons are listed as other experience.
        max_similar: Most lessons listed so.
    """
    for episode in episodes:
        read = [episode.lesson.text] if episode.lesson else []
        similar = [rng.choice(families).draw(rng).text for _ in range(rng.randint(0, max_similar))]
        trajectory = render_trajectory(episode.turns, episode.final_observation)
        messages = distill_messages(
            episode.instructions, episode.goal, read, trajectory, episode.success, similar=similar
        )
        listed = range(1, len(read) + len(similar) + 1)
        operation: Operation = {"operation": "add"}
        if listed and rng.random() < 0.3:
            operation = {"operation": "update", "ids": [rng.choice(listed)]}
        operation |= text_fields(episode.family.draw(rng))
        yield [*messages, operations_answer([operation], reason=_REASON)]


def merges(rng: random.Random, count: int, families: Sequence[Family] = FAMILIES) -> Iterator[list[Message]]:
    """Yield calls on 2 to 4 entries: two neighbours are merged or one entry is discarded, the others are retained."""
    for _ in range(count):
        drawn = [rng.choice(families) for _ in range(rng.randint(2, _MAX_MERGED))]
        lessons = [family.draw(rng) for family in drawn]
        entries = [_with_record(family, lesson, rng) for family, lesson in zip(drawn, lessons, strict=True)]
        operations: list[Operation] = []
        if rng.random() < 0.5:
            first = rng.randint(1, len(lessons) - 1)
            operations.append({"operation": "merge", "ids": [first, first + 1], **text_fields(lessons[first - 1])})
        elif rng.random() < 0.5:
            operations.append({"operation": "discard", "ids": [rng.randint(1, len(lessons))]})
        operations = retain_others(operations, len(lessons))
        yield [*merge_messages(entries), operations_answer(operations, reason=_REASON)]


def answers(rng: random.Random, count: int, families: Sequence[Family] = FAMILIES) -> Iterator[list[Message]]:
    """Yield ``search_and_ask`` calls, answered with the entry's content."""
    for _ in range(count):
        family = rng.choice(families)
        lesson = family.draw(rng)
        yield [*answer_messages(lesson.text, family.query), text_answer(lesson.content)]


def _with_record(family: Family, lesson: Experience, rng: random.Random) -> str:
    uses = rng.choice((0, rng.randint(1, 9)))
    usage = TaskUsage(task=family.task, uses=uses, successes=rng.randint(0, uses))
    step, free_success = rng.randint(0, 12), rng.randint(0, 9) / 10
    return listed_entry(lesson, usage, free_success=free_success, step=step)
