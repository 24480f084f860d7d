"""Limits the transfers of weights to servers with slots of their own."""

from typing import Any

from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from verl_comprl.platform.waiting import wait_for
from verl_comprl.platform.weight_transfers import TRANSFER_SECONDS, limit_transfers
from verl_comprl.trainer.servers.serving import SERVER_SECONDS


class LimitedTransfers(PPOTrainer):
    """Mixin over verl's ``separate_async``, to be put before its class.

    There a process of verl receives the weights and hands them to the server on its device. It would wait for ever for
    a server that dies meanwhile, and the trainer for it. Engines limit their transfers themselves
    (``trainer.engine_worker``).
    """

    def _setup(self) -> None:
        """Start everything, and set the limit in these processes before they get the first weights."""
        super()._setup()
        trainer: Any = self  # verl's class has no types
        workers = [worker for each in trainer.standalone_checkpoint_manager.replicas for worker in each.workers]
        limiting = [worker.__ray_call__.remote(lambda _: limit_transfers(TRANSFER_SECONDS)) for worker in workers]
        wait_for(limiting, SERVER_SECONDS, "the actor's servers to limit their transfers of weights")
