"""Texts of a made run: tasks, lessons, rooms and configuration."""

from itertools import product

TASKS = ("rooms/locked", "rooms/dark", "sokoban/small")
LESSONS = (
    (
        "A locked door without a key in sight",
        "Walk along every wall first: keys lie in corners more often than in the "
        "middle. Do not kick the door; each kick costs a turn, and after three the room is lost.",
        0.34,
    ),
    (
        "Boxes next to a wall",
        "A box that touches a wall can only move along it. Push it there only if its target lies "
        "on the same wall; otherwise push from the other side before it gets there.",
        0.3,
    ),
    (
        "Dark rooms: search before walking",
        "Use `search` twice where a corridor ends. Hidden doors are found by searching "
        "next to them, never from the middle of the room.",
        0.26,
    ),
    (
        "Order of pushes",
        "Solve the box that is farthest from its target last. Pushing it first closes the corridor for "
        "the others in most rooms with two boxes.",
        0.22,
    ),
    (
        "When the message says: nothing happens",
        "The action was refused, the turn is gone. Do not repeat it: look where "
        "you stand, then choose a direction that is not a wall.",
        0.16,
    ),
    (
        "Picking up the key",
        "Stand on the key and use `pickup`. Standing next to it does nothing, and the environment does not say why.",
        0.28,
    ),
    (
        "Going back for the lamp",
        "The lamp lies in the first room. Without it the dark room shows two squares; with it, the whole row.",
        0.12,
    ),
    ("Always go east first", "The exit was in the east in the last episode, so go east first.", -0.18),
    ("Kick the door until it opens", "Kicking opened the door at the fifth attempt. Keep kicking.", -0.22),
    ("Use `undo` often", "Undo whenever a box stands wrong; it is free.", -0.08),
    ("Count your moves", "An episode ends after thirty actions. Plan the way back before you pick up anything.", 0.05),
    (
        "Doors that need no key",
        "Some doors only look locked. Walk against the door once before searching for a key.",
        0.1,
    ),
    (
        "Two keys, one door",
        "Only the key of the door's colour opens it. Read the message after `pickup`: it names the colour.",
        0.24,
    ),
    (
        "Stuck between two boxes",
        "If both neighbours are boxes, step back the way you came. Never push the second box to free the first.",
        0.2,
    ),
    (
        "Long corridors in the dark",
        "Walk to the end before you search. Searching on the way cost six turns in three episodes and found nothing.",
        0.19,
    ),
    (
        "The exit is visible, but not reachable",
        "Look for the gap in the wall on the far side. The straight way is closed in every room with a `+` in a row.",
        0.17,
    ),
    (
        "Targets in a corner",
        "Bring the box along the wall that leads to the corner; a box in the wrong corner cannot be moved again.",
        0.27,
    ),
    (
        "Plan pushes backwards",
        "Start from the target: the last push needs a free square behind the box. Keep that square free.",
        0.31,
    ),
    (
        "Coins do not matter",
        "`$` gives no reward. Episodes that collected it ran out of turns in the last room.",
        0.14,
    ),
    (
        "After a wrong turn",
        "Return to the last fork instead of exploring further; the map does not change while you are away.",
        0.11,
    ),
    ("Search every square", "Searching each square makes sure that nothing is missed.", -0.15),
    ("Push boxes to the middle", "Boxes in the middle can be pushed in all directions.", -0.05),
    ("Pick up everything", "Items may be useful later, so pick up all of them before leaving the room.", -0.12),
    ("Open doors with `open`", "Use `open` next to the door and facing it; from further away nothing happens.", 0.15),
)
ADDITIONS = (
    "",
    " In rooms with two doors, try the nearer one first.",
    " If this fails twice, start from the other side.",
    " This holds for small rooms; in large ones follow the wall.",
    " Mistake seen: repeating a refused action.",
)
MOVES = ("north", "east", "south", "west", "pickup", "search", "open")
ROOM = "-------\n|..{a}..|\n|.@...+\n|....{b}|\n-------"

CONFIG = """\
comprl: {{arm: complementary}}
actor_rollout_ref: {{model: {{path: /models/Qwen2.5-1.5B-Instruct}}, rollout: {{n: 8}}}}
extractor: {{model: {{path: /models/Qwen3-0.6B}}}}
data: {{train_batch_size: {prompts}}}
trainer: {{total_training_steps: {steps}, v1: {{trainer_mode: comprl_sync}}}}
"""

_SYLLABLES = ("ba", "cor", "den", "fi", "gal", "lo", "mer", "nu", "pos", "ri", "sta", "tan", "vel")
WORDS = tuple("".join(parts) for parts in product(_SYLLABLES, repeat=3))
"""2,197 words without meaning."""
