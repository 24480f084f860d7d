"""Our trainers by name: the layer over each of verl's V1 modes (``trainer.v1.trainer_mode``)."""

from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from verl_comprl.trainer.layer import ComplementaryLayer


@register_trainer("comprl_sync")
class ComplementarySync(ComplementaryLayer, PPOTrainerSync):
    """Actor rollouts and updates alternate; the extractor works beside both."""

    base_mode = "sync"


@register_trainer("comprl_colocate_async")
class ComplementaryColocateAsync(ComplementaryLayer, PPOTrainerColocateAsync):
    """As verl's ``colocate_async``."""

    base_mode = "colocate_async"


@register_trainer("comprl_separate_async")
class ComplementarySeparateAsync(ComplementaryLayer, PPOTrainerSeparateAsync):
    """As verl's ``separate_async``."""

    base_mode = "separate_async"
