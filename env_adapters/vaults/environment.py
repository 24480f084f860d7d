"""Vaults as a text environment: the diagnostic environment for whether experience pays.

Owns the game: a code is entered move by move. What a vault is, and which code opens it, is in ``world``.
"""

from typing import Any, ClassVar

from env_adapters.base import TextEnvironment, Transition
from env_adapters.dataset import split_of
from env_adapters.parsing import is_one_action
from env_adapters.vaults.task import Task, goal, observation
from env_adapters.vaults.world import FAMILIES, KINDS, MOVES, Vault, draw_vault


class VaultsEnvironment(TextEnvironment):
    """Enter the hidden code; reward 1 when the last lamp lights, else 0."""

    thread_safe: ClassVar[bool] = True
    dataset: ClassVar[str | None] = "env_adapters.vaults.dataset:build_rows"

    vault: Vault
    """The running episode's vault with its code, for scripted players and diagnostics; never shown to the model."""

    def __init__(
        self,
        *,
        world: int = 0,
        family: str = FAMILIES[0],
        kinds: int = len(KINDS),
        length: int = 3,
        max_turns: int = 8,
    ) -> None:
        """Set the options.

        Args:
            world: Number of the world; each has its own codes.
            family: One of ``world.FAMILIES``.
            kinds: Number of kinds, from 1 to 8.
            length: Moves of a code, from 1 to 6.
            max_turns: Turns after which the episode is truncated.

        Raises:
            ValueError: If an option is out of range.
        """
        super().__init__(max_turns=max_turns)
        self._task = Task(world, family, kinds, length)
        self.instructions = self._task.instructions(max_turns)
        self.admissible_actions = list(MOVES)

    def close(self) -> None:
        """Do nothing; there is nothing to free."""

    def _start(self, seed: int, options: dict[str, Any]) -> str:
        if options:
            raise ValueError(f"vaults has no reset option {next(iter(options))!r}; it has none")
        task = self._task
        self.vault = draw_vault(task.world, task.family, task.kinds, task.length, *split_of(seed))
        self.goal = goal(self.vault)
        self.task_id = task.id_of(self.vault)
        self._lit = 0
        return observation(0)

    def _read(self, action_text: str) -> str | None:
        # Stricter than other families, where the last action counts whatever surrounds it: trained that way, small
        # models' answers grew until no turn ended any more, since it cost them nothing.
        return super()._read(action_text) if is_one_action(action_text) else None

    def _play(self, action: str) -> Transition:
        hit = action == self.vault.code[self._lit]
        self._lit += hit
        opened = self._lit == len(self.vault.code)
        text = observation(self._lit, move=action, hit=hit)
        return Transition(
            f"{text} It opens." if opened else text,
            float(opened),
            opened,
            success=opened,
            score=self._lit / len(self.vault.code),
            effective=hit,
        )
