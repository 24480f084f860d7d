"""Mixin over verl's V1 trainers that takes its engines from :class:`Engines`, which several runs may share."""

import sys
from functools import partial
from typing import Any

import ray
from omegaconf import DictConfig
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from verl_comprl.config.reading import comprl_config
from verl_comprl.platform.allocator import engine_variables
from verl_comprl.platform.patches import variables_of_workers
from verl_comprl.platform.waiting import call_within
from verl_comprl.trainer.engine_worker import EngineWorker
from verl_comprl.trainer.engines import Engines
from verl_comprl.trainer.servers.load_balancer import forget_requests
from verl_comprl.trainer.servers.serving import SERVER_SECONDS

_ACTOR_ROLES = (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef)


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
            # The module by its class: as a name in verl's package it is missing, and verl is blamed, if ours fails.
            with variables_of_workers(sys.modules[PPOTrainer.__module__], engine_variables()):
                super()._setup()
            self.engines.keep_actor(self)
            return
        self._init_tokenizer()
        self._init_dataloader()
        self._init_dump_executor()
        self.engines.lend_actor(self)
        self._took_over = True
        # Nobody waits for what the servers still generate for the run before.
        self.order_servers("abort_replicas")
        self.order_servers("sleep_replicas")
        servers: Any = self.checkpoint_manager
        forget_requests(self.llm_server_manager, servers.replicas)
        restart = partial(self.actor_rollout_wg.restart, self.config.actor_rollout_ref)
        call_within(restart, comprl_config(self.config).work_timeout, "the actor's workers to begin another run")
        self._load_checkpoint()

    def on_init_end(self) -> None:
        """Copy the weights to the servers, and let them generate again if they were taken over, which pauses them."""
        super().on_init_end()
        if self._took_over:
            self.order_servers("resume_generation_replicas")

    def order_servers(self, name: str) -> None:
        """Give an order to all servers of the actor; verl itself would wait for a server that hangs without a limit.

        Args:
            name: A method of verl's ``CheckpointEngineManager``.

        Raises:
            WaitTimeout: If a server hangs.
            ray.exceptions.RayError: If one has died.
        """
        call_within(getattr(self.checkpoint_manager, name), SERVER_SECONDS, f"the actor's servers ({name})")

    def free_memory(self) -> None:
        """Let the actor's workers give back the device memory that they keep for their next update.

        verl does so when the actor's weights go to its servers, which is after the extractor's turn on the same device.

        Raises:
            WaitTimeout: If a worker hangs.
            ray.exceptions.RayError: If one has died.
        """
        limit = comprl_config(self.config).work_timeout
        call_within(self.actor_rollout_wg.free_cached_memory, limit, "the actor's workers to give back memory")
