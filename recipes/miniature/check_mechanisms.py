"""Checks what models with merges and ``search_and_ask`` know of both before any training; the rest is in ``check``."""

import json
import random
from pathlib import Path

import torch

from env_adapters.vaults.task import observation as show_lamps
from recipes.miniature.check import play
from recipes.miniature.demonstrations import draw_entry, episodes, prompt
from recipes.miniature.entries import style_of
from recipes.miniature.mechanisms import answers, merges
from recipes.miniature.sampler import Sampler
from verl_comprl.experience.schema import Merge
from verl_comprl.experience.updates.parsing import parse_answer, parse_merge
from verl_comprl.rollout.messages import initial_messages
from verl_comprl.rollout.tool_schema import SEARCH_AND_ASK_SCHEMA

EXPECTED = {
    "asks": (0.05, 0.20),
    "readable_questions": (0.90, 1.0),
    "success_right_advice": (0.60, 1.0),
    "answers_as_the_entry": (0.60, 1.0),
    "readable_merges": (0.90, 1.0),
    "merges_as_the_first": (0.50, 1.0),
}
"""Allowed range of each figure."""


def check_mechanisms(models: Path, *, count: int = 200, seed: int = 6) -> dict[str, float]:
    """Return the figures of ``EXPECTED`` for the models in a folder.

    Args:
        models: Folder with ``actor`` and ``extractor``.
        count: Episodes and calls of each kind.
        seed: Chooses them, and the samples.
    """
    torch.manual_seed(seed)
    rng = random.Random(seed)
    actor, extractor = Sampler(models / "actor", max_new_tokens=16), Sampler(models / "extractor", max_new_tokens=48)
    advised, _ = play(actor, rng, count, "wrong", asks=True, advised=True)
    asked = list(answers(rng, count))
    copied = [parse_answer(text) for text in extractor.answers([call[:-1] for call in asked])]
    return {
        **_questions(actor, rng, count),
        "success_right_advice": sum(episode.success for episode in advised) / count,
        "answers_as_the_entry": sum(
            text == parse_answer(call[-1]["content"]) for text, call in zip(copied, asked, strict=True)
        )
        / count,
        **_merges(extractor, rng, count),
    }


def _questions(actor: Sampler, rng: random.Random, count: int) -> dict[str, float]:
    """Return how often the first turn of an episode is a question, and how many of these name something of the goal."""
    goals, conversations = [], []
    for environment in episodes(rng, count):
        entry = draw_entry(rng, environment.vault, "wrong")
        goals.append(environment.goal)
        conversations.append(initial_messages(prompt(environment), show_lamps(0), entry.text if entry else None))
    calls = [
        (goal, text)
        for goal, text in zip(goals, actor.answers(conversations, [SEARCH_AND_ASK_SCHEMA]), strict=True)
        if "<tool_call>" in text
    ]
    readable = sum(_is_readable(goal, text) for goal, text in calls)
    return {"asks": len(calls) / count, "readable_questions": readable / max(1, len(calls))}


def _is_readable(goal: str, text: str) -> bool:
    try:
        query = json.loads(text.partition("<tool_call>")[2].partition("</tool_call>")[0])["arguments"]["query"]
    except (ValueError, KeyError, TypeError):
        return False
    return style_of(query) != "other" and all(word in goal for word in query.split())


def _merges(extractor: Sampler, rng: random.Random, count: int) -> dict[str, float]:
    """Return how many answers can be read, and how many merges have the text of the entry that they name first."""
    calls = [call[:-1] for call in merges(rng, count)]
    answers = [parse_merge(text, listed=2) for text in extractor.answers(calls)]
    copied = [
        call[-1]["content"].split("\n\n")[operation.ids[0] - 1].endswith(f"\n{operation.title}\n{operation.content}")
        for call, answer in zip(calls, answers, strict=True)
        for operation in answer.operations
        if isinstance(operation, Merge)
    ]
    return {
        "readable_merges": sum(answer.format_ok for answer in answers) / count,
        "merges_as_the_first": sum(copied) / max(1, len(copied)),
    }
