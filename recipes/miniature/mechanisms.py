"""Questions and merges of the miniature, as supervised data for both models.

As in ``demonstrations``, the answers have the right form and no judgement: which entries are merged or dropped, and
whose content is kept, does not depend on their records.
"""

import random
from collections.abc import Iterator, Sequence

from env_adapters.vaults.task import observation
from env_adapters.vaults.world import Vault
from recipes.miniature.demonstrations import HEEDING, draw_entry, draw_question, episodes
from recipes.miniature.entries import WORKED, moves_content
from recipes.tiny_models.answers import (
    Operation,
    listed_entry,
    operations_answer,
    retain_others,
    text_answer,
    text_fields,
)
from recipes.tiny_models.consultation import consultation
from verl_comprl.experience.schema import Experience, Question, TaskUsage
from verl_comprl.extractor.prompts import answer_messages, merge_messages
from verl_comprl.rollout.messages import Message

KINDS = {kind: weight for kind, weight in HEEDING.items() if kind != "none"}

_SAME_RULE = 0.7
"""Neighbours of a bank mostly have the same title."""


def asking_drills(rng: random.Random, count: int) -> Iterator[list[Message]]:
    """Yield single turns with an entry, a question in the words of the goal, its answer, and the answer's next move.

    As ``demonstrations.reading_drills``; that an answer counts more than the entry is learned here.
    """
    for environment in episodes(rng, count):
        code = environment.vault.code
        entry = _draw(rng, environment.vault)
        lit = rng.randrange(len(code))
        question = Question(query=draw_question(rng, environment.vault).query, answer=moves_content(code, WORKED))
        yield [
            {"role": "user", "content": f"{environment.goal}\n{entry.text}\n{observation(lit)}"},
            *consultation(question),
            {"role": "assistant", "content": f"<action>{code[lit]}</action>"},
        ]


def answers(rng: random.Random, count: int) -> Iterator[list[Message]]:
    """Yield ``search_and_ask`` calls of the extractor, answered with the entry's content."""
    for environment in episodes(rng, count):
        entry = _draw(rng, environment.vault)
        query = draw_question(rng, environment.vault).query
        yield [*answer_messages(entry.text, query), text_answer(entry.content)]


def merging_drills(rng: random.Random, count: int, *, records: bool) -> Iterator[list[Message]]:
    """Yield two entries, after their records or without, and their merge.

    As ``demonstrations.writing_drills``: which of two texts to copy is learned from short prompts.
    """
    for entries, listed in _pairs(rng, count):
        shown = listed if records else [entry.text for entry in entries]
        numbered = (f"{number}. {text}" for number, text in enumerate(shown, start=1))
        yield [{"role": "user", "content": "\n\n".join(numbered)}, operations_answer([_merge(rng, entries)])]


def merges(rng: random.Random, count: int) -> Iterator[list[Message]]:
    """Yield calls on two neighbours: they are merged, or one is discarded, or both are retained."""
    for entries, listed in _pairs(rng, count):
        decision = rng.choice(([_merge(rng, entries)], [{"operation": "discard", "ids": [rng.randint(1, 2)]}], []))
        yield [*merge_messages(listed), operations_answer(retain_others(decision, len(entries)))]


def _pairs(rng: random.Random, count: int) -> Iterator[tuple[list[Experience], list[str]]]:
    """Yield two entries each, and the same as a merge lists them."""
    for _ in range(count):
        (environment,) = episodes(rng, 1)
        other = environment if rng.random() < _SAME_RULE else next(episodes(rng, 1))
        vaults = [environment.vault, other.vault]
        entries = [_draw(rng, vault) for vault in vaults]
        yield entries, [_with_record(rng, vault.family, entry) for vault, entry in zip(vaults, entries, strict=True)]


def _merge(rng: random.Random, entries: Sequence[Experience]) -> Operation:
    """Return the merge of two entries into the text of one of them.

    Its number comes first, so that what training has to find out is decided in one token, and the rest is copied.
    """
    ids = rng.sample((1, 2), 2)
    return {"operation": "merge", "ids": ids, **text_fields(entries[ids[0] - 1])}


def _draw(rng: random.Random, vault: Vault) -> Experience:
    entry = draw_entry(rng, vault, rng.choices(list(KINDS), list(KINDS.values()))[0])
    assert entry is not None
    return entry


def _with_record(rng: random.Random, family: str, entry: Experience) -> str:
    task = f"vaults/{family}"
    uses = rng.choice((0, rng.randint(1, 20)))
    usage = TaskUsage(task=task, uses=uses, successes=rng.randint(0, uses))
    step, free_success = rng.randint(0, 60), rng.randint(5, 60) / 100
    return listed_entry(entry.model_copy(update={"tasks": (task,)}), usage, free_success=free_success, step=step)
