"""Stops the clocks of running episodes while their servers pause for training."""

from typing import Any

from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from verl_comprl.platform.pauses import pause_episodes


class PausedEpisodes(PPOTrainer):
    """Mixin over verl's ``colocate_async``, whose servers pause from the end of sampling to that of the step."""

    def on_sample_end(self) -> None:
        """Pause the clocks, then the servers."""
        self._pause(True)
        super().on_sample_end()

    def on_step_end(self) -> None:
        """Let the servers continue, then the clocks."""
        super().on_step_end()  # pyright: ignore[reportAbstractUsage]  verl's class comes after this one
        self._pause(False)

    def _pause(self, paused: bool) -> None:
        trainer: Any = self  # verl's class has no types
        pause_episodes([*trainer.agent_loop_manager.agent_loop_workers, *trainer.experience_runtime.pausing], paused)
