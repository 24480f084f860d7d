"""Checks at start-up that the installed verl is a supported version and has every symbol that we use.

Otherwise an incompatible verl would fail deep inside a worker.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from operator import attrgetter

SUPPORTED_VERL = ("0.9.1",)

REQUIRED_SYMBOLS = (
    "verl.checkpoint_engine:CheckpointEngineManager",
    "verl.checkpoint_engine.base:CheckpointEngineRegistry",
    "verl.checkpoint_engine.base:merge_weight_chunks",
    "verl.checkpoint_engine.base:split_weight_chunks",
    "verl.experimental.agent_loop.agent_loop:AgentLoopBase",
    "verl.experimental.agent_loop.agent_loop:register",
    "verl.experimental.separation.engine_workers:DetachActorWorker",
    "verl.plugin.platform:PlatformRegistry",
    "verl.single_controller.ray:RayWorkerGroup",
    "verl.tools.base_tool:BaseTool",
    "verl.trainer.ppo.core_algos:register_adv_est",
    "verl.trainer.ppo.core_algos:compute_policy_loss_cispo",
    "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopManagerTQ",
    "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._wait_for_next_poll",
    "verl.trainer.ppo.v1.replay_buffer:ReplayBufferAsync._terminal_eviction_reasons",
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._add_batch_to_generate",
    "verl.trainer.ppo.v1.trainer_base:register_trainer",
    "verl.trainer.ppo.v1.trainer_colocate_async:PPOTrainerColocateAsync",
    "verl.trainer.ppo.v1.trainer_separate_async:HybridEngineMode",
    "verl.trainer.ppo.v1.trainer_separate_async:PPOTrainerSeparateAsync.switch_to_trainer",
    "verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync",
    "verl.utils.checkpoint.checkpoint_manager:BaseCheckpointManager",
    "verl.utils.distributed:initialize_global_process_group_ray",
    "verl.workers.engine_workers:ActorRolloutRefWorker",
    "verl.workers.rollout.base:_ROLLOUT_REGISTRY",
    "verl.workers.rollout.llm_server:FullyAsyncLLMServerClient",
    "verl.workers.rollout.llm_server:LLMServerClient",
    "verl.workers.rollout.llm_server:LLMServerManager",
    "verl.workers.rollout.replica:RolloutReplicaRegistry",
)


class IncompatibleVerlError(RuntimeError):
    """verl is missing, or its version is not supported."""


def installed_verl() -> str:
    """Return verl's version.

    Raises:
        IncompatibleVerlError: If verl is missing or its version is not supported.
    """
    try:
        installed = version("verl")
    except PackageNotFoundError:
        raise IncompatibleVerlError('verl is not installed: pip install "verl-comprl[cpu]" or "[gpu]"') from None
    if installed not in SUPPORTED_VERL:
        raise IncompatibleVerlError(
            f"verl {installed} is installed, verl-comprl works with {', '.join(SUPPORTED_VERL)}: "
            f"pip install verl=={SUPPORTED_VERL[-1]}"
        )
    return installed


def check_symbols() -> None:
    """Import every verl symbol that we use; slow, so only for start-up and ``comprl doctor``.

    Raises:
        IncompatibleVerlError: If symbols are missing; names each with the reason.
    """
    missing = []
    for symbol in REQUIRED_SYMBOLS:
        module, _, name = symbol.partition(":")
        try:
            attrgetter(name)(import_module(module))
        except AttributeError:
            missing.append(f"{symbol} (no such name)")
        except ImportError as error:
            missing.append(f"{symbol} ({error})")
    if missing:
        raise IncompatibleVerlError(f"verl {installed_verl()} lacks what verl-comprl needs: {'; '.join(missing)}")
