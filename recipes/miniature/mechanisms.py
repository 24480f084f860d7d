"""Questions and merges of the miniature, as supervised data for both models.

As in ``demonstrations``, the answers have the right form and no judgement: which entries are merged or dropped, and
whose content is kept, does not depend on their records.
"""

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

from env_adapters.vaults.task import observation
from env_adapters.vaults.world import Vault
from recipes.miniature.demonstrations import HEEDING, consultation, draw_entry, draw_question, episodes
from recipes.miniature.entries import WORKED, Entry, moves_content
from verl_comprl.experience.schema import Experience, Question, TaskUsage
from verl_comprl.extractor.prompts import answer_messages, merge_messages, render_entry
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
        yield [*answer_messages(entry.text, query), _answered(entry.content)]


def merges(rng: random.Random, count: int) -> Iterator[list[Message]]:
    """Yield calls on 2 to 4 entries: two neighbours are merged, or one is discarded, or all are retained."""
    for _ in range(count):
        vaults = _neighbours(rng, rng.randint(2, 4))
        entries = [_draw(rng, vault) for vault in vaults]
        listed = [_with_record(rng, vault.family, entry) for vault, entry in zip(vaults, entries, strict=True)]
        yield [*merge_messages(listed), _answered(json.dumps(_decide(rng, entries)))]


def _neighbours(rng: random.Random, count: int) -> list[Vault]:
    found: list[Vault] = []
    while len(found) < count:
        if not found or rng.random() > _SAME_RULE:
            (environment,) = episodes(rng, 1)
            vault = environment.vault
        found.append(vault)
    return found


def _decide(rng: random.Random, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    ids = list(range(1, len(entries) + 1))
    first = rng.randint(1, len(ids) - 1)
    kept = rng.choice(entries[first - 1 : first + 1])
    operations: list[dict[str, Any]] = rng.choice(
        [
            [{"operation": "merge", "ids": [first, first + 1], "title": kept.title, "content": kept.content}],
            [{"operation": "discard", "ids": [first]}],
            [],
        ]
    )
    changed = [id for operation in operations for id in operation["ids"]]
    left = [id for id in ids if id not in changed]
    return [*operations, *([{"operation": "retain", "ids": left}] if left else [])]


def _draw(rng: random.Random, vault: Vault) -> Entry:
    entry = draw_entry(rng, vault, rng.choices(list(KINDS), list(KINDS.values()))[0])
    assert entry is not None
    return entry


def _with_record(rng: random.Random, family: str, entry: Entry) -> str:
    task = f"vaults/{family}"
    uses = rng.choice((0, rng.randint(1, 20)))
    usage = TaskUsage(task=task, uses=uses, successes=rng.randint(0, uses))
    experience = Experience(
        id="", title=entry.title, content=entry.content, tasks=(task,), usage=(usage,) if uses else ()
    )
    return render_entry(experience, step=rng.randint(0, 60), free_success={task: rng.randint(5, 60) / 100})


def _answered(text: str) -> Message:
    return {"role": "assistant", "content": f"<answer>{text}</answer>"}
