"""The settings of the miniature: its config, and the pair of models that it starts with."""

from dataclasses import dataclass, field
from typing import Literal, get_args

FIRST_WORLD = 2**32
"""Worlds from this number on are for warm starts and checks; runs have smaller numbers."""

PROMPTS_PER_FAMILY = 4
"""Of a step, unless ``--prompts`` says otherwise."""

Name = Literal["plain", "wide", "full"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One variant of the miniature."""

    config: str
    """Hydra config in ``recipes``."""
    actor_heads: int = 3
    extractor_heads: int = 4
    """Attention heads; a head has as many dimensions in every setting."""
    vocabulary: int = 1000
    expected: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Ranges of its own in the check of the models, in place of ``check.EXPECTED``."""
    mechanisms: bool = False
    """Whether the models know ``search_and_ask`` and merges."""

    @property
    def asks(self) -> float:
        """Probability, per turn, that a demonstrator asks for advice."""
        return 0.1 if self.mechanisms else 0.0


SETTINGS: dict[Name, Setting] = {
    "plain": Setting("miniature/plain"),
    # The others' limit of .33 refuses its one pair, by less than .005 (docs/results.md).
    "wide": Setting("miniature/plain", extractor_heads=6, expected={"right_contents": (0.3, 0.55)}),
    "full": Setting("miniature/full", actor_heads=4, vocabulary=1600, mechanisms=True),
}
NAMES: tuple[Name, ...] = get_args(Name)
