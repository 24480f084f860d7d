"""Scripted episodes of all families, as supervised data for the actor: random valid actions, sometimes a question."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import env_adapters
from env_adapters import TextEnvironment
from env_adapters.dataset import split_seeds
from recipes.mix_models.families import FAMILIES, MAX_TURNS, Family
from recipes.tiny_models.consultation import consultation
from verl_comprl.experience.schema import Experience, Question, Turn
from verl_comprl.rollout.messages import Message, initial_messages, observation_message
from verl_comprl.rollout.tool_schema import SEARCH_AND_ASK_SCHEMA

_GUIDED = 0.6
_ASK = 0.25
"""Per turn of a guided episode, until it has asked once."""

_FAVOURED = 6
"""Weight of a family's favoured actions; the others have 1."""

_TEMPLATE = "search[<query>]"
"""The one action of the families that is no text to copy but a form to fill in."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One episode: the actor's conversation, and the trajectory that the extractor reads."""

    family: Family
    lesson: Experience | None
    messages: list[Message]
    turns: tuple[Turn, ...]
    final_observation: str
    instructions: str
    goal: str
    success: bool

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Tools that the actor is shown."""
        return [SEARCH_AND_ASK_SCHEMA] if self.lesson else []


def demonstrate(
    count: int, *, seed: int, families: Sequence[Family] = FAMILIES, max_turns: int = MAX_TURNS, split: str = "train"
) -> Iterator[Demonstration]:
    """Play ``count`` episodes of each family, family by family.

    Args:
        count: Episodes per family.
        seed: Chooses the episodes and all that is random in them; equal arguments give equal episodes.
        families: Families to play.
        max_turns: Turn limit of an episode; it is part of the prompt.
        split: ``train`` or ``val``.
    """
    for family in families:
        rng = random.Random(f"{family.task} {seed}")
        environment = env_adapters.make(family.environment, max_turns=max_turns, **family.options)
        try:
            for number in split_seeds(split, count, seed=seed):
                yield _play(environment, family, number, rng)
        finally:
            environment.close()


def _play(environment: TextEnvironment, family: Family, number: int, rng: random.Random) -> Demonstration:
    lesson = family.draw(rng) if rng.random() < _GUIDED else None
    observation, info = environment.reset(seed=number)
    goal = info["goal"]
    prompt = [{"role": "system", "content": environment.instructions}, {"role": "user", "content": goal}]
    messages = initial_messages(prompt, observation, lesson.text if lesson else None)
    may_ask = lesson is not None
    turns: list[Turn] = []
    while True:
        questions: tuple[Question, ...] = ()
        if may_ask and rng.random() < _ASK:
            may_ask = False
            questions = (Question(query=family.query, answer=family.draw(rng).content),)
            messages += consultation(*questions, thought="I ask for advice.")
        response = (
            f"<think>I try this.</think>\n<action>{_choose(info['admissible_actions'], family, goal, rng)}</action>"
        )
        turns.append(Turn(observation=observation, response=response, questions=questions))
        messages.append({"role": "assistant", "content": response})
        observation, _, terminated, truncated, info = environment.step(response)
        if terminated or truncated:
            break
        messages.append(observation_message(observation))
    return Demonstration(
        family, lesson, messages, tuple(turns), observation, environment.instructions, goal, info["success"]
    )


def _choose(actions: list[str], family: Family, goal: str, rng: random.Random) -> str:
    if family.favoured:
        return rng.choices(actions, [_FAVOURED if action in family.favoured else 1 for action in actions])[0]
    action = rng.choice(actions)
    return f"search[{' '.join(rng.sample(goal.split(), 2))}]" if action == _TEMPLATE else action
