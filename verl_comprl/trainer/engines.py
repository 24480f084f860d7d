"""Engines and servers of both models, which the runs of a sweep use one after the other.

Starting them takes nearly all of the time that a run needs before its first step. A run that takes them over begins
with the models' initial weights and a new optimizer, as if it had started them itself.
"""

import copy
from typing import Any

from omegaconf import DictConfig

from verl_comprl.trainer.extractor.runtime import ExtractorRuntime

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

    def keep_actor(self, trainer: Any) -> None:
        """Remember the parts of the trainer that has started the actor."""
        self._actor = {name: vars(trainer)[name] for name in _ACTOR_PARTS if name in vars(trainer)}

    def lend_actor(self, trainer: Any) -> None:
        """Give these parts to another trainer, and leave the actor as it is."""
        vars(trainer).update(self._actor)
        # Its clients read lengths and sampling from the config: of this run, not of the one that started the servers.
        trainer.llm_server_manager = copy.copy(trainer.llm_server_manager)
        trainer.llm_server_manager.config = trainer.config

    def extractor(self, config: DictConfig, pool: Any = None) -> ExtractorRuntime:
        """Return the extractor with its initial weights, started now if no run has needed it before.

        Args:
            config: The run's :func:`~verl_comprl.trainer.extractor.runtime.extractor_view`.
            pool: The actor's slots, if the extractor is to share them.
        """
        if self._extractor is None:
            self._extractor = ExtractorRuntime(config, pool)
        else:
            self._extractor.restart(config)
        return self._extractor
