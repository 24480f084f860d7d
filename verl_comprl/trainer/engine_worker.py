"""verl's worker of a model, which can begin another run: initial weights, new optimizer, the settings of that run."""

import gc
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from omegaconf import DictConfig
from tensordict import TensorDict
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.checkpoint.checkpoint_manager import BaseCheckpointManager
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.memory_utils import aggressive_empty_cache

from verl_comprl.errors import UpdateMade
from verl_comprl.platform.broken_pass import begin_anew, forget_with_gradients
from verl_comprl.platform.patches import independent_copy
from verl_comprl.platform.priority import Priority, set_cpu_priority
from verl_comprl.platform.ranks import RanksApart, ending_together, leaving_together, meeting_group, tell_each_other
from verl_comprl.platform.weight_transfers import TRANSFER_SECONDS, limit_transfers

_ALL_RANKS: Any = Dispatch.ONE_TO_ALL  # pyright: ignore[reportAttributeAccessIssue]  verl makes the members at run time


class EngineWorker(DetachActorWorker):
    """Engine and server adapter of one rank, which can set its weights aside, as ``separate_async`` needs."""

    _cannot_train = False
    """Whether a failed update has left the engine in a state from which nothing leads back."""
    _is_apart = False
    """Whether other ranks wait in a collective operation, which whatever this one began next would meet, or have other
    weights where they should have the same."""
    _steps_begun = _steps_ended = 0
    """Of the optimizer, in this update. One that fails may have changed weights, and moments before them."""
    _meeting: Any = None
    """Where the ranks meet after an update."""

    @register(dispatch_mode=_ALL_RANKS)
    def init_model(self) -> None:
        """Build engine and server adapter, as verl does; a server that dies must not block this process for ever."""
        limit_transfers(TRANSFER_SECONDS)
        self._random_state = BaseCheckpointManager.get_rng_state()
        super().init_model()
        self._meeting = meeting_group()
        if self.actor is not None:
            forget_with_gradients(self.actor.engine)
            self._watch_steps(self.actor.engine)

    @register(dispatch_mode=_ALL_RANKS)
    def set_cpu_priority(self, priority: Priority) -> None:
        """Set the priority of this process and its children."""
        set_cpu_priority(priority)

    @wraps(DetachActorWorker.update_actor)  # verl's dispatch reads from it how a batch is divided
    def update_actor(self, data: TensorDict) -> TensorDict | None:
        """Update, as verl does; after an update that raised the next one still trains the whole model."""
        self._refuse_if_apart()
        if self._cannot_train:
            raise RuntimeError("an earlier update has failed, after which this engine cannot train further")
        self._steps_begun = self._steps_ended = 0
        try:
            with ending_together(self._meeting):
                return super().update_actor(data)
        except RanksApart:
            self._is_apart = True
            raise
        except Exception as error:
            if self._settle():
                raise UpdateMade(f"weights were updated before this failed: {error!r}") from error
            raise

    def _settle(self) -> bool:
        """Agree with the other ranks on what a failed update has left; return whether one of them has changed weights.

        Where not all have taken the same steps to their end, none trains any more, and the optimizer begins anew in
        whatever resumes from here: its moments are of different steps, or incomplete. Where ranks hold copies of the
        same weights, these may differ, too, and no more is made of them.
        """
        engine: Any = self.actor.engine  # pyright: ignore[reportOptionalMemberAccess]
        mine = (self._steps_begun, self._steps_ended, begin_anew(engine.module) and self._put_away(engine))
        try:
            every = tell_each_other(mine, self._meeting)
        except RanksApart:
            self._is_apart = True
            return self._steps_begun > 0
        is_whole = len({steps for begun, ended, _ in every for steps in (begun, ended)}) == 1
        if not is_whole:
            engine.optimizer.state.clear()
            self._is_apart = engine.device_mesh.ndim > 1  # verl's mesh of replicas and shards (``fsdp_size``)
        self._cannot_train = not (is_whole and all(can for _, _, can in every))
        return any(begun for begun, _, _ in every)

    @staticmethod
    def _put_away(engine: Any) -> bool:
        """Offload what verl offloads after an update; returns whether that was possible.

        verl does not after one for which it could not load all of it, and the servers need the memory.
        """
        weights, moments = engine.is_param_offload_enabled, engine.is_optimizer_offload_enabled
        try:
            engine.to("cpu", model=weights, optimizer=moments, grad=weights)
        except Exception as error:
            print(f"the engine cannot be offloaded: {type(error).__name__}: {error}", flush=True)
            return False
        return True

    def _watch_steps(self, engine: Any) -> None:
        take_step = engine.optimizer_step

        def begin(*_: Any) -> None:
            self._steps_begun += 1

        def watched() -> Any:
            hook = engine.optimizer.register_step_pre_hook(begin)  # a restarted engine has another one
            try:
                norm = take_step()
            finally:
                hook.remove()
            self._steps_ended = self._steps_begun
            return norm

        engine.optimizer_step = watched

    def _refuse_if_apart(self) -> None:
        if self._is_apart:
            raise RanksApart("the ranks have gone apart in an update that has failed")

    @wraps(DetachActorWorker.update_weights)
    async def update_weights(self, *given: Any, **named: Any) -> Any:
        """Send the weights to the servers, as verl does, unless other ranks would take that for something else."""
        self._refuse_if_apart()
        return await super().update_weights(*given, **named)

    @register(dispatch_mode=_ALL_RANKS)
    def save_checkpoint(
        self, local_path: str, hdfs_path: str | None = None, global_step: int = 0, max_ckpt_to_keep: int | None = None
    ) -> None:
        """Write this rank's part, as verl does; where one rank cannot, all raise, and the engine can be used again."""
        self._refuse_if_apart()
        engine: Any = self.actor.engine  # pyright: ignore[reportOptionalMemberAccess]
        try:
            with leaving_together():
                super().save_checkpoint(local_path, hdfs_path, global_step, max_ckpt_to_keep)
        except Exception:  # whatever it was is raised again
            if engine.is_param_offload_enabled:  # verl has brought the weights to the device
                engine.to("cpu", model=True, optimizer=False, grad=False)
            raise

    @register(dispatch_mode=_ALL_RANKS)
    def free_cached_memory(self) -> None:
        """Give back the device memory that PyTorch keeps for the next update."""
        aggressive_empty_cache(force_sync=True)

    @register(dispatch_mode=_ALL_RANKS)
    def restart(self, config: DictConfig) -> None:
        """Build model, optimizer and learning-rate schedule again, from the random state of the first time.

        This is how the first run got them, so a run does not depend on those before it. ``sweep.shared_settings`` lists
        what takes effect here; everything else must be as it was.

        Args:
            config: The ``actor_rollout_ref`` subtree of the run that begins.
        """
        self._refuse_if_apart()
        settings: Any = omega_conf_to_dataclass(config.actor)
        worker: Any = self.actor
        settings.model_config = worker.model_config
        worker.optimizer_config = worker.engine.optimizer_config = settings.optim
        limits = worker.engine_config
        limits.micro_batch_size_per_gpu = config.actor.ppo_micro_batch_size_per_gpu
        limits.max_token_len_per_gpu = config.actor.ppo_max_token_len_per_gpu
        limits.infer_micro_batch_size_per_gpu = config.rollout.log_prob_micro_batch_size_per_gpu
        limits.infer_max_token_len_per_gpu = config.rollout.log_prob_max_token_len_per_gpu
        self._cannot_train = False
        # Released first: two models may not fit.
        worker.engine.module = worker.engine.optimizer = worker.engine.lr_scheduler = None
        worker.engine.checkpoint_manager = None
        gc.collect()
        aggressive_empty_cache(force_sync=True)
        BaseCheckpointManager.load_rng_state(self._random_state)
        worker.reset()
        self.loss_fn = partial(self.loss_fn.func, **self.loss_fn.keywords | {"config": settings})
        worker.set_loss_fn(self.loss_fn)

    @property
    def copy_handler(self) -> Callable[..., Any]:
        """Return verl's function that copies the weights to the host, such that training does not change the copy."""
        return independent_copy(super().copy_handler)
