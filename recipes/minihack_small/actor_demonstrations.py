"""Scripted episodes in the real environment, as supervised data for the actor.

Owns the behaviour of an imperfect demonstrator and how guidance changes it: with a helpful lesson it follows the
scripted expert, otherwise it mostly moves at random. An actor warm-started on this performs badly without experience
but can improve, and it reacts to what it reads. The lessons' wording is in ``lessons``.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import env_adapters
from env_adapters import TextEnvironment
from env_adapters.minihack.dataset import build_rows
from env_adapters.minihack.expert import ScriptedPolicy
from recipes.minihack_small.lessons import WORTHS, Lesson, Worth, draw_lesson
from recipes.tiny_models.consultation import consultation
from verl_comprl.experience.schema import Question, Turn
from verl_comprl.rollout.messages import EXPERIENCE_BLOCK, Message, initial_messages, observation_message
from verl_comprl.rollout.tool_schema import SEARCH_AND_ASK_SCHEMA

VARIANT = "room-ultimate"

_WANDERING: dict[Worth | None, float] = {"helpful": 0.02, "neutral": 0.85, "misleading": 0.95, None: 0.85}
"""Share of turns with a random move, by the last lesson that the demonstrator read; None: it read none."""

_GUIDANCE: dict[Worth | None, float] = {"helpful": 0.5, "neutral": 0.15, "misleading": 0.15, None: 0.2}
"""Share of episodes by lesson. Half have a helpful one, since only good play shows how to read the map."""

_ASK = 0.08  # per turn of a guided episode, until it has asked once
QUERIES = (
    "The room is dark and I see no staircase. Where should I go?",
    "I do not know where to search next. What should I do?",
    "I have few turns left. How do I find the staircase?",
)
_WANDERING_THOUGHTS = ("I just wander", "I try something", "Any way will do")
_GOAL = "staircase down"  # as the legend of an observation names it


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One episode: the actor's conversation, and the trajectory that the extractor reads."""

    messages: list[Message]
    tools: list[dict[str, Any]]
    turns: tuple[Turn, ...]
    advised: tuple[Turn, ...]
    """The same turns with the expert's answers."""
    final_observation: str
    instructions: str
    goal: str
    lesson: Lesson | None
    success: bool


def demonstrate(count: int, *, max_turns: int, seed: int) -> Iterator[Demonstration]:
    """Play ``count`` episodes on training seeds, half of them guided.

    Args:
        count: Number of episodes.
        max_turns: Turn limit of an episode; it is part of the prompt.
        seed: Chooses the environment's episodes and the demonstrator's randomness.

    Yields:
        Episodes; the same arguments give the same ones.
    """
    rng = random.Random(seed)
    environment = env_adapters.make("minihack", variant=VARIANT, max_turns=max_turns)
    try:
        for row in build_rows(VARIANT, "train", count, seed=seed, max_turns=max_turns):
            worth = rng.choices(list(_GUIDANCE), list(_GUIDANCE.values()))[0]
            lesson = draw_lesson(rng, worth) if worth else None
            yield _play(environment, row, lesson, rng)
    finally:
        environment.close()


def exercises(count: int, *, max_turns: int, seed: int) -> Iterator[list[Message]]:
    """Yield single turns as separate conversations.

    Reading the map and following a lesson are learned much faster from single turns than from whole episodes. A turn
    has one of two forms: observation and the expert's answer (preferably with the staircase in sight), or lesson,
    observation and the demonstrator's answer.

    Args:
        count: Number of episodes whose turns are used.
        max_turns: As for ``demonstrate``.
        seed: As for ``demonstrate``.
    """
    rng = random.Random(seed)
    for demonstration in demonstrate(count, max_turns=max_turns, seed=seed):
        for played, advised in zip(demonstration.turns, demonstration.advised, strict=True):
            observation = observation_message(played.observation)
            if _GOAL in played.observation or rng.random() < 0.25:
                yield [observation, {"role": "assistant", "content": advised.response}]
            if demonstration.lesson and rng.random() < 0.25:
                lesson = EXPERIENCE_BLOCK.format(experience=demonstration.lesson.text)
                question = {"role": "user", "content": f"{lesson}\n\n{observation['content']}"}
                yield [question, {"role": "assistant", "content": played.response}]


def _play(
    environment: TextEnvironment, row: dict[str, Any], lesson: Lesson | None, rng: random.Random
) -> Demonstration:
    observation, info = environment.reset(seed=row["extra_info"]["seed"])
    messages = initial_messages(row["prompt"], observation, lesson.text if lesson else None)
    expert = ScriptedPolicy()
    wandering = _WANDERING[lesson.worth if lesson else None]
    may_ask = lesson is not None
    instructions = "\n\n".join(message["content"] for message in row["prompt"] if message["role"] == "system")
    turns: list[Turn] = []
    advised: list[Turn] = []
    over = False
    while not over:
        questions: tuple[Question, ...] = ()
        if may_ask and rng.random() < _ASK:
            may_ask = False
            answer = draw_lesson(rng, rng.choice(WORTHS))
            questions = (Question(query=rng.choice(QUERIES), answer=answer.content),)
            messages += consultation(*questions, thought="I ask for advice.")
            wandering = _WANDERING[answer.worth]
        advice = _advise(observation, expert.act(observation))
        if rng.random() < wandering:
            response = _respond(rng.choice(_WANDERING_THOUGHTS), rng.choice(info["admissible_actions"]))
        else:
            response = advice
        turns.append(Turn(observation=observation, response=response, questions=questions))
        advised.append(Turn(observation=observation, response=advice))
        messages.append({"role": "assistant", "content": response})
        observation, _, terminated, truncated, info = environment.step(response)
        over = terminated or truncated
        if not over:
            messages.append(observation_message(observation))
    tools = [SEARCH_AND_ASK_SCHEMA] if lesson else []
    return Demonstration(
        messages,
        tools,
        tuple(turns),
        tuple(advised),
        observation,
        instructions,
        info["goal"],
        lesson,
        info["success"],
    )


def _advise(observation: str, action: str) -> str:
    direction = action.removeprefix("move ")
    in_sight = _GOAL in observation
    return _respond(
        f"The staircase is in sight, I go {direction}" if in_sight else f"I search to the {direction}", action
    )


def _respond(thought: str, action: str) -> str:
    return f"<think>{thought}.</think>\n<action>{action}</action>"
