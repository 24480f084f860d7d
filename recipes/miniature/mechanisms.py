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


def merges(rng: random.Random, count: int) -> Iterator[list[Message]]:
    """Yield calls on 2 to 4 entries: two neighbours are merged, or one is discarded, or all are retained."""
    for _ in range(count):
        vaults = _neighbours(rng, rng.randint(2, 4))
        entries = [_draw(rng, vault) for vault in vaults]
        listed = [_with_record(rng, vault.family, entry) for vault, entry in zip(vaults, entries, strict=True)]
        yield [*merge_messages(listed), operations_answer(_decide(rng, entries))]


def _neighbours(rng: random.Random, count: int) -> list[Vault]:
    found: list[Vault] = []
    while len(found) < count:
        if not found or rng.random() > _SAME_RULE:
            (environment,) = episodes(rng, 1)
            vault = environment.vault
        found.append(vault)
    return found


def _decide(rng: random.Random, entries: Sequence[Experience]) -> list[Operation]:
    first = rng.randint(1, len(entries) - 1)
    kept = rng.choice(entries[first - 1 : first + 1])
    operations: list[Operation] = rng.choice(
        [
            [{"operation": "merge", "ids": [first, first + 1], **text_fields(kept)}],
            [{"operation": "discard", "ids": [first]}],
            [],
        ]
    )
    return retain_others(operations, len(entries))


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
