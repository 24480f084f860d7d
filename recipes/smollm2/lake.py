"""FrozenLake as a family of scripted episodes: what its lessons say is sometimes right and sometimes wrong.

The player goes down and right without looking for holes, and wins one episode in ten: a start from which there is
something to learn. Of one that moves at random one in a hundred is won, and every reward of a short run is 0.
"""

from recipes.mix_models.families import Family

MAX_TURNS = 8
"""As in tasks.sh; the number is part of the prompt."""

LAKE = Family(
    "frozenlake/4x4",
    "frozenlake",
    (
        "Find a way across the ice",
        "Holes on the way to the goal",
        "Count the moves to the goal",
        "Look before each step",
        "At the edge of the lake",
        "Which way to go first",
        "When a hole blocks the way",
        "Reach the goal in time",
    ),
    (
        "Compare your row and column with those of the goal before you move.",
        "Go right first, then down.",
        "Go down first, then right.",
        "Never step onto a hole, shown as O.",
        "Go around a hole through the next row.",
        "Take the shortest way, since turns are few.",
        "Keep to the edge of the lake.",
        "A move against the edge loses a turn.",
        "Go back one step if both ways are blocked by holes.",
        "Stay in the middle of the lake.",
        "Plan all moves before the first one.",
        "Holes are harmless if you are fast.",
        "Prefer the direction in which more ice is left.",
        "Check the cell below you, then the cell to your right.",
    ),
    "How do I get to the goal from here?",
    favoured=("down", "right"),
)
