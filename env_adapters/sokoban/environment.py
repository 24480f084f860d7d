"""Sokoban as a text environment.

Owns the episode: its level, the response to a move, and when it is won. The rules are in ``level``, the texts in
``task`` and ``observation``.
"""

from typing import Any, ClassVar

from env_adapters.base import TextEnvironment, Transition
from env_adapters.protocols import choose
from env_adapters.sokoban.generator import generate
from env_adapters.sokoban.level import ACTIONS, Level, move
from env_adapters.sokoban.observation import render
from env_adapters.sokoban.protocols import PROTOCOLS
from env_adapters.sokoban.task import Task


class SokobanEnvironment(TextEnvironment):
    """Push every box onto a target; reward 1 for that, else 0. The score is the share of boxes on targets."""

    thread_safe: ClassVar[bool] = True
    dataset: ClassVar[str | None] = "env_adapters.sokoban.dataset:build_rows"

    level: Level
    """The current position."""

    solution: list[str]
    """A shortest solution of the initial position."""

    def __init__(
        self,
        *,
        size: int = 6,
        protocol: str = "paper",
        boxes: int | None = None,
        difficulty: str | None = None,
        max_turns: int | None = None,
    ) -> None:
        """Set the options of the levels.

        Args:
            size: Cells along each side of the room, walls included.
            protocol: A key of ``env_adapters.sokoban.protocols.PROTOCOLS``, with the defaults of the options below.
            boxes: Number of boxes, and of targets.
            difficulty: A key of ``env_adapters.sokoban.task.DIFFICULTIES``.
            max_turns: Turns after which the episode is truncated.

        Raises:
            ValueError: If an option is out of range.
        """
        chosen, options = choose(PROTOCOLS, protocol, boxes=boxes, difficulty=difficulty, max_turns=max_turns)
        super().__init__(max_turns=options["max_turns"], protocol=chosen)
        self._task = Task(size, options["boxes"], options["difficulty"])
        self.instructions = chosen.reword(self._task.instructions(self.max_turns))
        self.goal = self._task.goal
        self.admissible_actions = list(ACTIONS)

    def close(self) -> None:
        """Do nothing; there is nothing to free."""

    def _start(self, seed: int, options: dict[str, Any]) -> str:
        if options:
            raise ValueError(f"sokoban has no reset option {next(iter(options))!r}; it has none")
        self.task_id = f"{self._task.name}/{seed}"
        self.level, self.solution = generate(seed, self._task.size, self._task.boxes, self._task.lengths)
        return render(self.level, "")

    def _play(self, action: str) -> Transition:
        before, self.level = self.level, move(self.level, action)
        if self.level.solved:
            return Transition("Every box is on a target. You won.", 1.0, terminated=True, success=True, score=1.0)
        score = (self.level.boxes & self.level.targets).bit_count() / self.level.boxes.bit_count()
        if self.level is before:
            return Transition(render(before, "You are blocked; nothing moved."), score=score, effective=False)
        verb = "moved" if self.level.boxes == before.boxes else "pushed a box"
        return Transition(render(self.level, f"You {verb} {action}."), score=score)
