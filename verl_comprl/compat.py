"""Checks at start-up that the installed verl is a supported version and has every symbol that we use.

Otherwise an incompatible verl would fail deep inside a worker.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from operator import attrgetter

SUPPORTED_VERL = ("0.9.1",)

REQUIRED_SYMBOLS = {
    "verl.checkpoint_engine:CheckpointEngineManager": "copies weights to the extractor's servers",
    "verl.checkpoint_engine.base:CheckpointEngineManager.abort_replicas": "pauses servers",
    "verl.checkpoint_engine.base:CheckpointEngineManager.resume_generation_replicas": "lets servers resume",
    "verl.checkpoint_engine.base:CheckpointEngineManager.sleep_replicas": "frees the memory of servers",
    "verl.checkpoint_engine.base:CheckpointEngineRegistry": "weight sync to servers on GPUs of their own",
    "verl.checkpoint_engine.base:merge_weight_chunks": "weight sync over gloo",
    "verl.checkpoint_engine.base:split_weight_chunks": "weight sync over gloo",
    "verl.experimental.agent_loop.agent_loop:AgentLoopBase": "base of an episode",
    "verl.experimental.agent_loop.agent_loop:register": "makes our agent loop selectable",
    "verl.experimental.agent_loop.tool_parser:ToolParser": "finds questions in a turn",
    "verl.experimental.separation.engine_workers:DetachActorWorker": "the actor's engine in separate_async",
    "verl.plugin.platform:PlatformRegistry": "the CPU as a platform",
    "verl.single_controller.ray.base:ResourcePoolManager._check_resource_available": "slots that are reserved before",
    "verl.single_controller.ray:RayResourcePool": "the extractor's device slots",
    "verl.single_controller.ray:RayResourcePool.get_placement_groups": "slots that are reserved before",
    "verl.single_controller.ray:RayWorkerGroup": "the extractor's workers",
    "verl.single_controller.ray:create_colocated_worker_cls": "the extractor's workers",
    "verl.tools.base_tool:BaseTool": "search_and_ask as a tool of other agent loops",
    "verl.trainer.constants_ppo:get_ppo_ray_runtime_env": "environment of Ray's workers",
    "verl.trainer.ppo.core_algos:register_adv_est": "makes our advantage selectable",
    "verl.trainer.ppo.core_algos:register_policy_loss": "makes our CISPO selectable",
    "verl.trainer.ppo.core_algos:compute_policy_loss_cispo": "Eq. 3",
    "verl.trainer.ppo.v1:get_trainer_cls": "finds our trainers",
    "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopManagerTQ": "processes that play episodes",
    "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._terminal_eviction_reasons": "groups that leave the buffer",
    "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._wait_for_next_poll": "a stop while rollouts run",
    "verl.trainer.ppo.v1.replay_buffer:ReplayBufferAsync": "buffer of the asynchronous trainers",
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._add_batch_to_generate": "groups without rows are refilled",
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._add_prompts_to_generate": "prompts that a stop has left in flight",
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._balance_batch": "rows in the same order, with full_determinism",
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._compute_advantage": "Eq. 5",
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._compute_metrics": "metrics of a step",
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._compute_old_log_prob": "a phase that the watchdog names",
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._fetch_one_gen_batch": "ids of prompts, with full_determinism",
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._get_required_batch_multiple": "several outputs per rollout",
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._init_dataloader": "equal shares of tasks",
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._init_resource_pool_mgr": "the worker of an engine can be ours",
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._load_checkpoint": "resume; leftovers in TransferQueue",
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._reissue_inflight_prompts": "its behaviour: a resumed run plays them",
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._save_checkpoint": "bank and extractor in a checkpoint",
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._setup": "starts the extractor at the same time as the actor",
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._update_actor": "optimizer steps with several outputs",
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._val_metrics_update": "evaluation with and without experience",
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._validate": "a phase that the watchdog names",
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer.prepare_step": "a phase that the watchdog names",
    "verl.trainer.ppo.v1.trainer_base:register_trainer": "makes our trainers selectable",
    "verl.trainer.ppo.v1.trainer_colocate_async:PPOTrainerColocateAsync": "base of comprl_colocate_async",
    "verl.trainer.ppo.v1.trainer_separate_async:HybridEngineMode": "what the trainer's GPUs do",
    "verl.trainer.ppo.v1.trainer_separate_async:PPOTrainerSeparateAsync.switch_to_trainer": "the end of a run",
    "verl.trainer.ppo.v1.trainer_separate_async:PPOTrainerSeparateAsync": "base of comprl_separate_async",
    "verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync": "base of comprl_sync",
    "verl.utils.checkpoint.checkpoint_manager:BaseCheckpointManager": "checkpoints of a lent engine",
    "verl.utils.distributed:initialize_global_process_group_ray": "patched on a CPU",
    "verl.utils.rollout_trace:_trace_enabled": "traces of episodes",
    "verl.utils.tokenizer.continuous_token:ContinuousTokenBuilder": "exact token stream of an episode",
    "verl.workers.rollout.base:_ROLLOUT_REGISTRY": "makes the extractor's server adapter selectable",
    "verl.workers.rollout.llm_server:FullyAsyncLLMServerClient": "resumes aborted generations",
    "verl.workers.rollout.llm_server:LLMServerClient": "generation",
    "verl.workers.rollout.llm_server:LLMServerManager": "servers of the extractor",
    "verl.workers.rollout.replica:RolloutReplicaRegistry": "makes the extractor's server selectable",
    "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:BucketedWeightSender": "its behaviour: limited",
    "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMReplica.init_hybrid": "the extractor's server",
    "verl.workers.rollout.vllm_rollout.vllm_rollout:ServerAdapter": "its side in the engine's process",
}
"""What we use of verl (``module:name`` or ``module:class.method``), and for what. A few names occur nowhere else here:
what they do is relied on."""


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
    for symbol, purpose in REQUIRED_SYMBOLS.items():
        module, _, name = symbol.partition(":")
        try:
            attrgetter(name)(import_module(module))
        except ImportError as error:
            missing.append(f"{symbol} ({error})")
        except AttributeError:
            missing.append(f"{symbol} (no such name; {purpose})")
    if missing:
        raise IncompatibleVerlError(f"verl {installed_verl()} lacks what verl-comprl needs: {'; '.join(missing)}")
