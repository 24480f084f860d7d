"""Engines and servers of both models, which the runs of a sweep use one after the other.

Starting them takes nearly all of the time that a run needs before its first step. A run that takes them over begins
with the models' initial weights and a new optimizer, as if it had started them itself.
"""

import copy
from typing import Any

import ray
from omegaconf import DictConfig
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from verl_comprl.trainer.engine_worker import EngineWorker
from verl_comprl.trainer.extractor_runtime import ExtractorRuntime

_ACTOR_ROLES = (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef)
_ACTOR_PARTS = (
    "resource_pool_manager",
    "ref_in_actor",
    "actor_rollout_wg",
    "ref_policy_wg",
    "reward_loop_manager",
    "teacher_model_manager",
    "distillation_config",
    "llm_server_manager",
    "checkpoint_manager",
)
"""Attributes of verl's trainer that belong to its engines and servers, not to one run."""


class Engines:
    """The engines that have been started so far; none at first."""

    def __init__(self) -> None:
        """Start nothing: the first run that needs a model starts it."""
        self._actor: dict[str, Any] = {}
        self._extractor: ExtractorRuntime | None = None

    @property
    def has_actor(self) -> bool:
        """Whether the actor has been started."""
        return bool(self._actor)

    def keep_actor(self, trainer: PPOTrainer) -> None:
        """Remember the parts of the trainer that has started the actor."""
        self._actor = {name: vars(trainer)[name] for name in _ACTOR_PARTS if name in vars(trainer)}

    def lend_actor(self, trainer: PPOTrainer) -> None:
        """Give these parts to another trainer, and leave the actor as it is."""
        vars(trainer).update(self._actor)
        # Its clients read lengths and sampling from the config: of this run, not of the one that started the servers.
        trainer.llm_server_manager = copy.copy(trainer.llm_server_manager)
        trainer.llm_server_manager.config = trainer.config

    def extractor(self, config: DictConfig) -> ExtractorRuntime:
        """Return the extractor with its initial weights, started now if no run has needed it before.

        Args:
            config: The run's :func:`~verl_comprl.trainer.extractor_runtime.extractor_view`.
        """
        if self._extractor is None:
            self._extractor = ExtractorRuntime(config)
        else:
            self._extractor.restart(config)
        return self._extractor


class EngineSharing(PPOTrainer):
    """Mixin over verl's trainers whose actor is in :class:`Engines`; by default these are the run's own."""

    def __init__(self, config: DictConfig) -> None:
        """Take verl's config."""
        super().__init__(config)
        self.engines = Engines()
        """Set before :meth:`init` to share them."""
        self._took_over = False

    def prepare(self) -> None:
        """Start what is the run's own and needs no engine, without waiting for it; :meth:`init` does so otherwise."""

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in self.role_worker_mapping.keys() & _ACTOR_ROLES:
            self.role_worker_mapping[role] = ray.remote(EngineWorker)

    def _setup(self) -> None:
        """Start the actor, or take it over from the run before; the rest of a trainer is each run's own."""
        if not self.engines.has_actor:
            super()._setup()
            self.engines.keep_actor(self)
            return
        self._init_tokenizer()
        self._init_dataloader()
        self._init_dump_executor()
        self.engines.lend_actor(self)
        self._took_over = True
        # Nobody waits for what the servers still generate for the run before.
        servers: Any = self.checkpoint_manager
        servers.abort_replicas()
        servers.sleep_replicas()
        self.actor_rollout_wg.restart(self.config.actor_rollout_ref)
        self._load_checkpoint()

    def on_init_end(self) -> None:
        """Copy the weights to the servers, and let them generate again if they were taken over, which pauses them."""
        super().on_init_end()
        if self._took_over:
            servers: Any = self.checkpoint_manager
            servers.resume_generation_replicas()
