"""The environment families of the mixes, with the lessons and questions that their scripted episodes contain."""

import random
from dataclasses import dataclass, field
from typing import Any

from verl_comprl.experience.schema import Experience

MAX_TURNS = 4
"""As in recipes/run.sh for two CPU cores; the number is part of the prompt."""


@dataclass(frozen=True, slots=True)
class Family:
    """One family of tasks."""

    task: str
    """Name of the task in datasets and records."""
    environment: str
    titles: tuple[str, ...]
    sentences: tuple[str, ...]
    query: str
    options: dict[str, Any] = field(default_factory=dict)
    favoured: tuple[str, ...] = ()
    """Actions that the scripted episodes prefer, where random ones would never succeed."""

    def draw(self, rng: random.Random) -> Experience:
        """Return a lesson: an entry of the task, with two of the sentences."""
        title, content = rng.choice(self.titles), " ".join(rng.sample(self.sentences, 2))
        return Experience(id="", title=title, content=content, tasks=(self.task,))


_STAIRCASE = (
    "Walk towards cells that are still dark.",
    "Step onto the staircase as soon as it is next to you.",
    "Follow the wall until it opens.",
    "Wait until the monster has gone.",
)

FAMILIES = (
    Family(
        "minihack/room-ultimate",
        "minihack",
        ("Search the dark room", "Find the staircase", "Monsters in the room"),
        _STAIRCASE,
        "The room is dark. Where is the staircase?",
        {"variant": "room-ultimate"},
    ),
    Family(
        "webshop",
        "webshop",
        ("Search the shop", "Choose options before you buy", "Compare prices"),
        (
            "Search for the kind of product and one attribute.",
            "Choose colour and size on the product page.",
            "Turn the page if no title fits.",
            "Buy the first product at once.",
        ),
        "Which product fits the instruction?",
    ),
    Family(
        "alfworld",
        "alfworld",
        ("Look into closed places", "Carry one thing at a time", "Heat, cool and clean"),
        (
            "Open drawers and cabinets to see what is inside.",
            "Go to the counter first.",
            "Take the object before you use an appliance.",
            "Look at the inventory every turn.",
        ),
        "Where do I find the object?",
    ),
    Family(
        "minihack/maze",
        "minihack",
        ("Ways of the maze", "Dead ends", "Keep to one wall"),
        _STAIRCASE,
        "Which way leads out of the maze?",
        {"variant": "maze"},
    ),
    Family(
        "minihack/keyroom",
        "minihack",
        ("The key opens the door", "Pick up the key", "A locked door"),
        ("Pick up the key first.", "Apply the key to the locked door.", *_STAIRCASE[:2]),
        "How do I open the locked door?",
        {"variant": "keyroom"},
    ),
    Family(
        "sokoban/6x6-2-medium",
        "sokoban",
        ("Push, do not trap", "Boxes and corners", "Plan the last push"),
        (
            "Never push a box into a corner.",
            "Push the farther box first.",
            "Walk around a box to push it back.",
            "Push every box upwards.",
        ),
        "Which box do I push first?",
    ),
)
