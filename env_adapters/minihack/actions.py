"""Action phrases for MiniHack and the NetHack commands they stand for.

Owns names only, so that prompts, datasets and the scripted policy need no engine.
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
"""Steps by phrase, as (columns to the east, rows to the south)."""

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
"""Commands by phrase, as (enumeration, member) in ``nle.nethack``."""
