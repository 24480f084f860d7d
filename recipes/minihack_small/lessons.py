"""Texts of scripted lessons: they guide demonstrations, and the extractor's example answers contain them.

Owns the wording and which lessons help; how strongly a lesson changes the demonstrator is in ``actor_demonstrations``.
Lessons are combined from interchangeable sentences, so that an extractor trained on them has many ways to say each
thing and reinforcement learning has something to choose from.
"""

import random
from dataclasses import dataclass
from typing import Literal, get_args

from verl_comprl.experience.schema import Experience

Worth = Literal["helpful", "neutral", "misleading"]
WORTHS: tuple[Worth, ...] = get_args(Worth)


class Lesson(Experience):
    """An entry of known worth."""

    worth: Worth


@dataclass(frozen=True, slots=True)
class _Topic:
    titles: tuple[str, ...]
    sentences: tuple[str, ...]


_TOPICS: dict[Worth, tuple[_Topic, ...]] = {
    "helpful": (
        _Topic(
            ("Search a dark room", "Find the staircase in the dark", "Explore the unseen side"),
            (
                "Walk towards unseen cells until the staircase shows up.",
                "Explore cells that you have not seen yet.",
                "Search the room in one direction and turn at the rock.",
                "Do not walk back to cells that you know.",
            ),
        ),
        _Topic(
            ("Go straight to the staircase", "Take the staircase at once", "Step on the staircase"),
            (
                "When the staircase is next to you, step onto it at once.",
                "Move diagonally where that is shorter.",
                "Go straight to the staircase and do not wander.",
                "Do not waste turns.",
            ),
        ),
        _Topic(
            ("Go around trouble", "Monsters and traps"),
            (
                "Fight a monster that blocks the way, then search on.",
                "Walk around traps and keep searching.",
                "Let no monster keep you from the staircase.",
            ),
        ),
    ),
    "neutral": (
        _Topic(
            ("Symbols on the map", "What the map shows"),
            (
                "A dot is floor and a tilde is unseen or rock.",
                "The staircase up is where the episode began.",
                "The legend names each symbol.",
                "Letters are monsters.",
            ),
        ),
        _Topic(
            ("Hit points", "About health", "The moon and other messages"),
            (
                "Hit points are shown below the map.",
                "The moon changes nothing.",
                "A corpse can be left alone.",
                "The message line tells what happened.",
            ),
        ),
    ),
    "misleading": (
        _Topic(
            ("Take your time", "Move about freely", "Try any direction"),
            (
                "Any direction is as good as another.",
                "Wander about and see what happens.",
                "There is no hurry in a small room.",
                "Change the direction often.",
            ),
        ),
        _Topic(
            ("Stay where it is safe", "Do not trust the dark"),
            (
                "Stay close to the start.",
                "Keep away from unseen cells.",
                "Turn back when you have seen something new.",
                "Leave the staircase alone until all is quiet.",
            ),
        ),
    ),
}


def draw_lesson(rng: random.Random, worth: Worth) -> Lesson:
    """Return a lesson of the given worth: a title and one or two sentences of one topic."""
    topic = rng.choice(_TOPICS[worth])
    sentences = rng.sample(topic.sentences, rng.choice((1, 2)))
    return Lesson(id="", worth=worth, title=rng.choice(topic.titles), content=" ".join(sentences))
