"""Checks the warm-started models before any training: what the miniature shows depends on where both begin.

Plays episodes in unseen worlds without, with right and with wrong entries, and reads what the extractor writes about
them.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from env_adapters.vaults.task import observation as show_lamps
from recipes.miniature.demonstrations import (
    Demonstration,
    distillation_prompt,
    draw_entry,
    episodes,
    prompt,
)
from recipes.miniature.entries import STYLES, WORKED, moves_content, moves_of, style_of, title
from recipes.miniature.sampler import Sampler
from recipes.tiny_models.consultation import consultation
from verl_comprl.experience.schema import Add, Question, Return, Turn, Update
from verl_comprl.experience.updates.parsing import parse_distillation
from verl_comprl.rollout.messages import initial_messages, observation_message
from verl_comprl.rollout.tool_schema import SEARCH_AND_ASK_SCHEMA

EXPECTED = {
    "success_free": (0.10, 0.24),
    "success_right_entry": (0.80, 1.0),
    "success_wrong_entry": (0.0, 0.12),
    "valid_moves": (0.98, 1.0),
    "right_contents": (0.33, 0.55),
    "title_name": (0.22, 0.42),
    "title_kind_adjective": (0.22, 0.42),
    "title_kind_family": (0.22, 0.42),
    "unparsable": (0.0, 0.03),
}
"""Allowed range of each figure."""


def play(
    sampler: Sampler, rng: random.Random, count: int, kind: str, *, asks: bool = False, advised: bool = False
) -> tuple[list[Demonstration], float]:
    """Let the actor play ``count`` episodes with entries of a kind; returns them and the share of valid moves.

    Args:
        sampler: The actor.
        rng: All randomness but the actor's.
        count: Number of episodes.
        kind: A key of ``demonstrations.HEEDING``.
        asks: Whether an actor with an entry may ask, once an episode; it is answered with the content of its entry.
        advised: Whether a question with the right answer precedes the first turn.
    """
    environments = list(episodes(rng, count))
    entries = [draw_entry(rng, environment.vault, kind) for environment in environments]
    observations = [show_lamps(0)] * count
    conversations = [
        initial_messages(prompt(environment), observation, entry.text if entry else None)
        for environment, observation, entry in zip(environments, observations, entries, strict=True)
    ]
    played = [
        Demonstration(environment.vault, entry, [], (), (), "", environment.instructions, environment.goal, False)
        for environment, entry in zip(environments, entries, strict=True)
    ]
    for conversation, environment in zip(conversations if advised else (), environments, strict=advised):
        answer = moves_content(environment.vault.code, WORKED)
        conversation += consultation(Question(query=title(environment.vault, STYLES[-1]), answer=answer))
    may_ask = {index for index, entry in enumerate(entries) if entry and asks and not advised}
    tools = (SEARCH_AND_ASK_SCHEMA,) if kind != "none" and asks else ()
    running, valid = list(range(count)), []
    while running:
        answers = sampler.answers([conversations[index] for index in running], tools)
        for index, answer in zip(list(running), answers, strict=True):
            conversations[index].append({"role": "assistant", "content": answer})
            entry = entries[index]
            if entry and index in may_ask and "<tool_call>" in answer:
                may_ask.remove(index)
                conversations[index].append({"role": "tool", "content": entry.content})
                continue
            before = observations[index]
            observations[index], _, terminated, truncated, info = environments[index].step(answer)
            valid.append(info["action_valid"])
            move = answer.removeprefix("<action>").removesuffix("</action>")
            played[index] = replace(
                played[index],
                turns=(*played[index].turns, Turn(observation=before, response=answer)),
                moves=(*played[index].moves, (move, bool(info["action_effective"]))),
                final_observation=observations[index],
                success=info["success"],
            )
            conversations[index].append(observation_message(observations[index]))
            if terminated or truncated:
                running.remove(index)
    return played, sum(valid) / len(valid)


def check(models: Path, *, asks: bool = False, count: int = 300, seed: int = 5) -> dict[str, float]:
    """Return the figures of ``EXPECTED`` for the models in a folder.

    Args:
        models: Folder with ``actor`` and ``extractor``.
        asks: Whether an actor with an entry is offered ``search_and_ask``, as in its warm start.
        count: Episodes of each kind.
        seed: Chooses episodes and samples.
    """
    torch.manual_seed(seed)
    rng = random.Random(seed)
    actor = Sampler(models / "actor", max_new_tokens=16 if asks else 8)
    figures: dict[str, float] = {}
    finished: list[Demonstration] = []
    valid = []
    for kind, name in (("none", "free"), ("right", "right_entry"), ("wrong", "wrong_entry")):
        played, share = play(actor, rng, count, kind, asks=asks)
        figures[f"success_{name}"] = sum(episode.success for episode in played) / count
        finished += played
        valid.append(share)
    figures["valid_moves"] = sum(valid) / len(valid)
    lit = [episode for episode in finished if any(hit for _, hit in episode.moves)]
    return figures | _notes(Sampler(models / "extractor", max_new_tokens=40), lit)


def _notes(sampler: Sampler, finished: Sequence[Demonstration]) -> dict[str, float]:
    """Return what the extractor writes about episodes in which a lamp was lit."""
    counts: Counter[str] = Counter()
    for episode, answer in zip(finished, sampler.answers([distillation_prompt(e) for e in finished]), strict=True):
        parsed = parse_distillation(answer, max_operations=3, listed=1 if episode.entry else 0)
        if not parsed.operations:
            counts["unparsable"] += 1
            continue
        first = parsed.operations[0]
        counts["return"] += isinstance(first, Return)
        if isinstance(first, Add | Update):
            hits = tuple(move for move, hit in episode.moves if hit)
            counts["right_contents"] += first.content.startswith(WORKED) and moves_of(first.content) == hits
            counts["foreign_titles"] += not set(first.title.split()) <= set(episode.vault.words)
            counts[f"title_{style_of(first.title)}"] += 1
    written = sum(counts[f"title_{style}"] for style in (*STYLES, "other"))
    return {
        "right_contents": counts["right_contents"] / max(1, written),
        **{f"title_{style}": counts[f"title_{style}"] / max(1, written) for style in STYLES},
        "foreign_titles": counts["foreign_titles"] / max(1, written),
        "return": counts["return"] / len(finished),
        "unparsable": counts["unparsable"] / len(finished),
    }


def problems(figures: Mapping[str, float], expected: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return a line for each figure outside its expected range."""
    return [
        f"{name} is {figures[name]:.2f}, expected {low:.2f} to {high:.2f}"
        for name, (low, high) in expected.items()
        if not low <= figures[name] <= high
    ]


def show(figures: dict[str, float]) -> str:
    """Return the figures as lines of text."""
    return "\n".join(f"  {name:24} {value:.2f}" for name, value in figures.items())
