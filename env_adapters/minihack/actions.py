"""The phrases a model answers with and the engine commands they stand for.

Owns names only, so that prompts, datasets and the scripted policy can be made without the engine.
"""

COMPASS: dict[str, tuple[int, int]] = {
    "move north": (0, -1),
    "move northeast": (1, -1),
    "move east": (1, 0),
    "move southeast": (1, 1),
    "move south": (0, 1),
    "move southwest": (-1, 1),
    "move west": (-1, 0),
    "move northwest": (-1, -1),
}
"""Phrase to step (columns to the east, rows to the south)."""

PICKUP = "pickup"
APPLY_KEY = "apply key"

COMMANDS: dict[str, tuple[str, str]] = {
    "move north": ("CompassDirection", "N"),
    "move northeast": ("CompassDirection", "NE"),
    "move east": ("CompassDirection", "E"),
    "move southeast": ("CompassDirection", "SE"),
    "move south": ("CompassDirection", "S"),
    "move southwest": ("CompassDirection", "SW"),
    "move west": ("CompassDirection", "W"),
    "move northwest": ("CompassDirection", "NW"),
    PICKUP: ("Command", "PICKUP"),
    APPLY_KEY: ("Command", "APPLY"),
}
"""Phrase to enumeration and member in ``nle.nethack``."""
