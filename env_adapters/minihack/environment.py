"""MiniHack as a text environment.

Owns the use of the engine: creating a level, seeding, stepping, and detecting success and death. The texts are in
``variants``, ``actions`` and ``observation``.
"""

import warnings
from typing import Any, ClassVar

import gymnasium
from gymnasium.envs.registration import load_env_creator
from nle import nethack as _nethack

from env_adapters.base import TextEnvironment, Transition
from env_adapters.minihack.actions import APPLY_KEY, COMMANDS
from env_adapters.minihack.observation import decode, render, squeeze
from env_adapters.minihack.protocols import PROTOCOLS
from env_adapters.minihack.variants import build_instructions, compact, get_variant
from env_adapters.protocols import choose

with warnings.catch_warnings():
    # MiniHack still uses pkg_resources, which warns at every import.
    warnings.filterwarnings("ignore", message="pkg_resources is deprecated")
    import minihack  # noqa: F401  registers the levels with gymnasium

nethack: Any = _nethack  # most names come from a compiled module without type information

_SOLVED = 2  # StepStatus.TASK_SUCCESSFUL
_DOOR_OPENED = "You unlock the door with the key and open it."


def _command(phrase: str) -> Any:
    enumeration, member = COMMANDS[phrase]
    return getattr(getattr(nethack, enumeration), member)


class MiniHackEnvironment(TextEnvironment):
    """One MiniHack task: reach the staircase down; reward 1 for that, else 0."""

    thread_safe: ClassVar[bool] = True  # the engine keeps all state per instance
    dataset: ClassVar[str | None] = "env_adapters.minihack.dataset:build_rows"

    def __init__(
        self, *, variant: str = "room-ultimate", protocol: str = "paper", max_turns: int | None = None
    ) -> None:
        """Load the level.

        Args:
            variant: A key of ``env_adapters.minihack.variants.VARIANTS``.
            protocol: A key of ``env_adapters.minihack.protocols.PROTOCOLS``.
            max_turns: Turns after which the episode is truncated.

        Raises:
            ValueError: If the variant is unknown or ``max_turns`` is not a positive integer.
        """
        chosen, options = choose(PROTOCOLS, protocol, max_turns=max_turns, compact=None)
        super().__init__(max_turns=options["max_turns"], protocol=chosen)
        task = get_variant(variant)
        self.variant = variant
        self._compact: bool = options["compact"]
        actions = compact(task.actions) if self._compact else task.actions
        self.instructions = chosen.reword(build_instructions(task, self.max_turns, actions))
        self.goal = task.goal
        self.admissible_actions = list(actions)
        seen = ("glyphs", "chars", "screen_descriptions", "blstats", "message")
        # gymnasium.make would consume max_episode_steps for its own wrapper. The engine's limit must be above ours,
        # because the engine reports reaching it as termination.
        create = load_env_creator(str(gymnasium.spec(task.gym_id).entry_point))
        self._game: Any = create(
            actions=tuple(_command(phrase) for phrase in task.actions),
            max_episode_steps=self.max_turns + 1,
            observation_keys=(*seen, "inv_strs") if task.inventory else seen,
            fix_moon_phase=True,
            **({"des_file": task.level} if task.level else {}),
        )
        self._screen: dict[str, Any] = {}

    def close(self) -> None:
        """Stop the engine."""
        self._game.close()

    def _start(self, seed: int, options: dict[str, Any]) -> str:
        if options:
            raise ValueError(f"minihack has no reset option {next(iter(options))!r}; it has none")
        self.task_id = f"minihack/{self.variant}/{seed}"
        # reset(seed=...) is ignored by the engine.
        self._game.seed(core=seed, disp=seed, reseed=False, lgen=seed)
        self._screen, _ = self._game.reset()
        self._time = self._stat(nethack.NLE_BL_TIME)
        return self._render(decode(self._screen["message"]))

    def _play(self, action: str) -> Transition:
        door_was_closed = action == APPLY_KEY and self._closed_door_adjacent()
        self._screen, _, terminated, _, status = self._game.step(self.admissible_actions.index(action))
        if terminated:  # the final screen is blank
            if status["end_status"] == _SOLVED:
                return Transition("You reached the staircase down. You won.", 1.0, True, success=True, score=1.0)
            return Transition("You died. You lost.", 0.0, True)
        message = decode(self._screen["message"])
        if door_was_closed and not self._closed_door_adjacent():
            message = _DOOR_OPENED  # the level opens it by a sequence of keys, and the last one prints "Never mind."
        before, self._time = self._time, self._stat(nethack.NLE_BL_TIME)
        # The game's clock does not advance for an action without effect, such as walking into a wall.
        return Transition(self._render(message), effective=self._time > before)

    def _render(self, message: str) -> str:
        text = render(
            self._screen["chars"],
            self._screen["screen_descriptions"],
            nethack.glyph_is_monster(self._screen["glyphs"]),
            (self._stat(nethack.NLE_BL_X), self._stat(nethack.NLE_BL_Y)),
            message,
            (self._stat(nethack.NLE_BL_HP), self._stat(nethack.NLE_BL_HPMAX)),
            [decode(item) for item in self._screen["inv_strs"] if item[0]] if "inv_strs" in self._screen else None,
        )
        return squeeze(text) if self._compact else text

    def _stat(self, index: int) -> int:
        return int(self._screen["blstats"][index])

    def _closed_door_adjacent(self) -> bool:
        return self._game.get_object_direction("closed door") is not None
