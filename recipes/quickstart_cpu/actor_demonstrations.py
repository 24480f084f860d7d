"""Scripted episodes in the real environment, as supervised data for the actor.

Owns how a demonstrator that is not perfect behaves and how guidance changes it: a helpful lesson makes it follow the
scripted expert, anything else leaves it wandering most of the time. An actor warm-started on this is bad but trainable
when free, and what it reads matters to it. The lessons' wording is ``lessons``.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import env_adapters
from env_adapters import TextEnvironment
from env_adapters.minihack.dataset import build_rows
from env_adapters.minihack.expert import ScriptedPolicy
from recipes.quickstart_cpu.lessons import WORTHS, Lesson, Worth, draw_lesson
from verl_comprl.experience.schema import Turn
from verl_comprl.rollout.messages import Message, initial_messages, observation_message
from verl_comprl.rollout.tool_schema import SEARCH_AND_ASK_SCHEMA

VARIANT = "room-ultimate"

WANDERING: dict[Worth, float] = {"helpful": 0.05, "neutral": 0.75, "misleading": 0.9}
"""Share of turns with a random move, by what the demonstrator was told last."""
FREE_WANDERING = 0.75

_ASK = 0.08  # per turn of a guided episode, until it has asked once
_QUERIES = (
    "The room is dark and I see no staircase. Where should I go?",
    "I do not know where to search next. What should I do?",
    "I have few turns left. How do I find the staircase?",
)
_WANDERING_THOUGHTS = ("I just wander.", "I try something.", "Any way will do.")


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One episode: what the actor learns from, and what the extractor would read."""

    messages: list[Message]
    tools: list[dict[str, Any]]
    turns: tuple[Turn, ...]
    goal: str
    lesson: Lesson | None
    success: bool


def demonstrate(count: int, *, max_turns: int, seed: int) -> Iterator[Demonstration]:
    """Play ``count`` episodes on training seeds, half of them guided.

    Args:
        count: Number of episodes.
        max_turns: Turn limit of an episode; it stands in the prompt.
        seed: Chooses the environment's episodes and the demonstrator's randomness.

    Yields:
        Episodes; the same arguments give the same ones.
    """
    rng = random.Random(seed)
    environment = env_adapters.make("minihack", variant=VARIANT, max_turns=max_turns)
    try:
        for row in build_rows(VARIANT, "train", count, seed=seed, max_turns=max_turns):
            lesson = draw_lesson(rng, rng.choice(WORTHS)) if rng.random() < 0.6 else None
            yield _play(environment, row, lesson, rng)
    finally:
        environment.close()


def _play(
    environment: TextEnvironment, row: dict[str, Any], lesson: Lesson | None, rng: random.Random
) -> Demonstration:
    observation, info = environment.reset(seed=row["extra_info"]["seed"])
    messages = initial_messages(row["prompt"], observation, lesson.text if lesson else None)
    expert = ScriptedPolicy()
    wandering = WANDERING[lesson.worth] if lesson else FREE_WANDERING
    may_ask = lesson is not None
    turns: list[Turn] = []
    over = False
    while not over:
        if may_ask and rng.random() < _ASK:
            may_ask = False
            advice = draw_lesson(rng, rng.choice(WORTHS))
            messages += _consultation(rng.choice(_QUERIES), advice.content)
            wandering = WANDERING[advice.worth]
        advised = expert.act(observation)
        if rng.random() < wandering:
            thought, action = rng.choice(_WANDERING_THOUGHTS), rng.choice(info["admissible_actions"])
        else:
            thought, action = _explain(observation, advised), advised
        response = f"<think>{thought}</think>\n<action>{action}</action>"
        turns.append(Turn(observation=observation, response=response))
        messages.append({"role": "assistant", "content": response})
        observation, _, terminated, truncated, info = environment.step(response)
        over = terminated or truncated
        if not over:
            messages.append(observation_message(observation))
    tools = [SEARCH_AND_ASK_SCHEMA] if lesson else []
    return Demonstration(messages, tools, tuple(turns), info["goal"], lesson, info["success"])


def _explain(observation: str, action: str) -> str:
    direction = action.removeprefix("move ")
    if "staircase down" in observation:
        return f"The staircase is in sight, I go {direction}."
    return f"I search to the {direction}."


def _consultation(query: str, answer: str) -> list[Message]:
    call = json.dumps({"name": "search_and_ask", "arguments": {"query": query}})
    content = f"<think>I ask for advice.</think>\n<tool_call>\n{call}\n</tool_call>"
    return [{"role": "assistant", "content": content}, {"role": "tool", "content": answer}]
