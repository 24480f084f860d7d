"""The trainers: Complementary RL over each of verl's three V1 trainers (``trainer.v1.trainer_mode``).

What differs between them is when servers pause, and which client survives that; the rest is in ``trainer``.
"""

from typing import Any

from omegaconf import DictConfig
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import HybridEngineMode, PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_separate_async import logger as separate_async_logger
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.workers.rollout.llm_server import LLMServerClient

from verl_comprl.platform.patches import accept_flush
from verl_comprl.trainer.paused_episodes import PausedEpisodes
from verl_comprl.trainer.servers.limited_transfers import LimitedTransfers
from verl_comprl.trainer.servers.single_server_client import make_client
from verl_comprl.trainer.step.determinism import SameOrder
from verl_comprl.trainer.step.groups import SubmittedAhead
from verl_comprl.trainer.trainer import ComplementaryTrainerMixin


@register_trainer("comprl_sync")
class ComplementarySync(ComplementaryTrainerMixin, SameOrder, PPOTrainerSync):
    """Actor rollouts and updates alternate (verl's ``sync``)."""

    base_mode = "sync"

    def get_llm_client(self) -> LLMServerClient:
        """Return the client of the rollouts; the other modes add and remove servers during a run."""
        return make_client(self.llm_server_manager)

    def resuming_client(self) -> LLMServerClient:
        """Return a client of its own for the extractor's calls: the rollouts' need none that resumes in this mode."""
        return make_client(self.llm_server_manager, resuming=True)

    def prepare_step(self) -> dict:
        """Draw the prompts of the step, and keep the place at which they begin."""
        self._drawn_from = self.train_dataloader.state_dict()
        return super().prepare_step()

    def take_back_prompts(self) -> None:
        """Let the next draw be that of the step that is left: nothing of it is in the checkpoint in this mode."""
        self.train_dataloader.load_state_dict(self._drawn_from)

    def record_left_episodes(self, step: int) -> None:
        """Record them: they are played again, under other ids, or else with a record that replaces this one."""
        self._episodes.leave(self.global_steps + 1 if self._is_deterministic else step)

    def on_sample_end(self) -> None:
        """Pause the servers before they sleep or get other weights, if they answer the extractor's calls, too.

        verl relies on there being no requests: it would put the servers to sleep, or change the weights, under them.
        Paused, a server keeps what it is sent; the extractor's client sends aborted calls again.
        """
        if self._actor_is_extractor:
            self.order_servers("abort_replicas")
        super().on_sample_end()

    def on_step_end(self) -> None:
        """Let the servers continue, with the new weights."""
        super().on_step_end()
        if self._actor_is_extractor:
            self.order_servers("resume_generation_replicas")


@register_trainer("comprl_colocate_async")
class ComplementaryColocateAsync(ComplementaryTrainerMixin, SubmittedAhead, PausedEpisodes, PPOTrainerColocateAsync):
    """The next batches are rolled out while one is trained; servers pause meanwhile (verl's ``colocate_async``)."""

    base_mode = "colocate_async"

    def get_llm_client(self) -> LLMServerClient:
        """Return the client of the rollouts, which continues what a weight sync has aborted."""
        return make_client(self.llm_server_manager, resuming=True)


@register_trainer("comprl_separate_async")
class ComplementarySeparateAsync(ComplementaryTrainerMixin, SubmittedAhead, LimitedTransfers, PPOTrainerSeparateAsync):
    """Servers of their own roll out while the trainer trains (verl's ``separate_async``)."""

    base_mode = "separate_async"

    def __init__(self, config: DictConfig) -> None:
        """Take verl's config with our ``comprl`` and ``extractor`` subtrees."""
        accept_flush(separate_async_logger)
        super().__init__(config)

    def pause_servers(self) -> None:
        """Abort what the servers generate; the trainer's own ones free their memory for the engine too."""
        trainer: Any = self  # verl's class has no types
        trainer.standalone_checkpoint_manager.abort_replicas(reject_request=True)
        if trainer.current_mode == HybridEngineMode.ROLLOUT:
            trainer.switch_to_trainer()
