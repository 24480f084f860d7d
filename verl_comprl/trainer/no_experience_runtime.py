"""The runtime of an arm without experience: the methods that the trainer calls, which do nothing here."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from verl.workers.rollout.llm_server import LLMServerClient

from verl_comprl.trainer.engines import Engines


class NoExperienceRuntime:
    """The runtime of an arm without experience: every method does nothing."""

    pausing: tuple[Any, ...] = ()
    """Processes whose answers to episodes pause with the actor's servers."""
    checkpoint_parts: tuple[str, ...] = ()
    """Files and folders of ours without which a checkpoint is not complete."""

    def open(self, folder: Path | None, *, is_own: bool) -> None:
        """Open the bank.

        Args:
            folder: Checkpoint that is resumed; None for a new run.
            is_own: Whether it is one of this run, so that the bank keeps what it holds until it is restored.
        """

    def start(self, engines: Engines, pool: Any = None) -> None:
        """Start engines and servers, which takes long, unless ``engines`` has them.

        Args:
            engines: What has been started.
            pool: The actor's slots, if the extractor shares them.
        """

    def connect(self, folder: Path | None, actor: LLMServerClient) -> None:
        """Restore from a checkpoint, if there is one, and start distillation.

        Args:
            folder: The checkpoint; None for a new run.
            actor: A client of the actor's servers, which have the actor's weights by now. It must survive their pauses.
        """

    def begin(self, agent_loops: Sequence[Any], is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Start training the extractor in the background.

        Args:
            agent_loops: The workers that will play episodes.
            is_stopped: Says that the run was asked to stop, so that they are not waited for, and no update begins.
        """

    def collect(self, step: int) -> dict[str, float]:
        """Close an actor step and return its metrics."""
        return {}

    def take_turn(self, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Train the extractor while the actor pauses, if they share slots.

        Args:
            is_stopped: Says that the run was asked to stop, so that the turn ends sooner.
        """

    @property
    def update_is_late(self) -> bool:
        """Whether an update of the extractor was left behind, and has its device still."""
        return False

    def finish(self, is_stopped: Callable[[], bool]) -> dict[str, float]:
        """Wait for pending distillations at the end of a run and return the totals.

        Args:
            is_stopped: Says that nobody wants to wait any more.
        """
        return {}

    def stop(self, seconds: float, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Let a running update finish, then stop training the extractor.

        Args:
            seconds: After which it is left behind.
            is_stopped: Says that the run was asked to stop, so that it is left behind sooner.
        """

    def bank_checksum(self) -> str | None:
        """Return the checksum of the bank's current content."""

    def hold_updates(self) -> None:
        """Begin no update beside the actor before :meth:`resume_updates`: the coming checkpoint would wait for it."""

    def resume_updates(self) -> None:
        """Let the extractor be updated again."""

    def settle_reports(self) -> None:
        """Let the manager get what it has not confirmed, before the agent loops end."""

    def save(self, folder: Path, step: int, is_stopped: Callable[[], bool] = lambda: False) -> str:
        """Write our part of a checkpoint; returns why it may lack episodes, empty if it has all of them.

        Args:
            folder: The checkpoint.
            step: Its actor step.
            is_stopped: Says that the run was asked to stop, so that it cannot wait long.
        """
        return ""

    def note_checkpoint(self, folder: Path) -> None:
        """Note a checkpoint that is complete.

        Args:
            folder: The checkpoint.
        """

    def close(self, seconds: float) -> None:
        """Close the bank.

        Args:
            seconds: Limit.
        """
