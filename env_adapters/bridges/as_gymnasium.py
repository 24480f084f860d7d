"""Bridge from text environments to gymnasium environments.

Owns the spaces and how gymnasium's seeding maps to ours.
"""

from typing import Any

import gymnasium
from gymnasium.spaces import Text

from env_adapters.base import TextEnvironment
from env_adapters.registry import make

LONGEST_ACTION = 2**14
LONGEST_OBSERVATION = 2**20
_PRINTABLE = "\n" + "".join(map(chr, range(ord(" "), ord("~") + 1)))


class AnyText(Text):
    """Every text of up to ``max_length`` characters.

    gymnasium's ``Text`` enumerates its characters, which is impractical for Unicode, and messages and observations may
    contain any character. Samples consist of printable ASCII.
    """

    def __init__(self, max_length: int, *, seed: int | None = None) -> None:
        """Set the maximum length in characters."""
        super().__init__(max_length, min_length=0, charset=_PRINTABLE, seed=seed)

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is a string that is not too long."""
        return isinstance(x, str) and len(x) <= self.max_length

    def __repr__(self) -> str:
        """Return the expression that creates this space."""
        return f"AnyText({self.max_length})"

    def __eq__(self, other: Any) -> bool:
        """Return whether ``other`` is the same space."""
        return isinstance(other, AnyText) and self.max_length == other.max_length


class TextGymnasium(gymnasium.Env[str, str]):
    """A text environment behind gymnasium's interface; an action is the model's whole message.

    Attributes:
        environment: The text environment, for its ``instructions``.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012  gymnasium declares it without ClassVar

    def __init__(self, environment: TextEnvironment, *, render_mode: str | None = None) -> None:
        """Wrap ``environment``.

        Raises:
            ValueError: If the render mode is unknown.
        """
        if render_mode not in (None, "ansi"):
            raise ValueError(f"unknown render mode {render_mode!r}; known: ansi")
        self.environment = environment
        self.render_mode = render_mode
        self.action_space = AnyText(LONGEST_ACTION)
        self.observation_space = AnyText(LONGEST_OBSERVATION)
        self._split = 0
        self._shown = ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start the episode of ``seed``; without a seed, draw one from the generator seeded last.

        Drawn episodes belong to the split of the last seed, or to training if there was none.
        """
        super().reset(seed=seed)
        if seed is None:
            seed = 2 * int(self.np_random.integers(2**40)) + self._split
        self._split = seed % 2
        self._shown, info = self.environment.reset(seed=seed, options=options)
        return self._shown, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one turn."""
        self._shown, reward, terminated, truncated, info = self.environment.step(action)
        return self._shown, reward, terminated, truncated, info

    def render(self) -> str | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the last observation if the render mode is ``ansi``."""
        return self._shown if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Close the text environment."""
        self.environment.close()


def as_gymnasium(name: str, *, render_mode: str | None = None, **options: Any) -> TextGymnasium:
    """Create a text environment behind gymnasium's interface.

    Args:
        name: As for ``env_adapters.make``.
        render_mode: ``ansi`` or None.
        **options: The family's options.

    Raises:
        ValueError: If the name, an option or its value is unknown.
        ImportError: If the family's dependencies are missing.
    """
    return TextGymnasium(make(name, **options), render_mode=render_mode)
