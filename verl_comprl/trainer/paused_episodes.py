"""Stops the clocks of running episodes while their servers pause for training."""

from typing import Any

from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from verl_comprl.rollout.pauses import pause_episodes


class PausedEpisodes(PPOTrainer):
    """Mixin over verl's ``colocate_async``, whose servers pause from the end of sampling to that of the step."""

    def on_sample_end(self) -> None:
        """Pause the clocks, then the servers."""
        self._pause(True)
        super().on_sample_end()

    def on_step_end(self) -> None:
        """Let the servers go on, then the clocks."""
        super().on_step_end()  # pyright: ignore[reportAbstractUsage]  verl's class comes after this one
        self._pause(False)

    def _pause(self, paused: bool) -> None:
        loops: Any = self.agent_loop_manager
        pause_episodes(loops.agent_loop_workers, paused)
