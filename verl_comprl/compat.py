"""Checks at start-up that the installed verl is a supported version and has every symbol that we use.

Otherwise an incompatible verl would fail deep inside a worker.
"""

import traceback
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from operator import attrgetter
from types import ModuleType

SUPPORTED_VERL = ("0.9.1",)

REQUIRED_SYMBOLS = {
    "verl.checkpoint_engine:CheckpointEngineManager": "copies weights to the extractor's servers",
    "verl.checkpoint_engine.base:CheckpointEngine": "weight sync over gloo",
    "verl.checkpoint_engine.base:CheckpointEngineManager.abort_replicas": "pauses servers",
    "verl.checkpoint_engine.base:CheckpointEngineManager.resume_generation_replicas": "lets servers resume",
    "verl.checkpoint_engine.base:CheckpointEngineManager.sleep_replicas": "frees the memory of servers",
    "verl.checkpoint_engine.base:CheckpointEngineRegistry": "weight sync to servers on GPUs of their own",
    "verl.checkpoint_engine.base:TensorMeta": "weight sync over gloo",
    "verl.checkpoint_engine.base:merge_weight_chunks": "weight sync over gloo",
    "verl.checkpoint_engine.base:split_weight_chunks": "weight sync over gloo",
    "verl.experimental.agent_loop:AgentLoopManager": "processes that play episodes",
    "verl.experimental.agent_loop.agent_loop:AgentLoopBase": "base of an episode",
    "verl.experimental.agent_loop.agent_loop:AgentLoopMetrics": "times of an episode",
    "verl.experimental.agent_loop.agent_loop:AgentLoopOutput": "tokens of an episode",
    "verl.experimental.agent_loop.agent_loop:_agent_loop_registry": "checked to have ours",
    "verl.experimental.agent_loop.agent_loop:register": "makes our agent loop selectable",
    "verl.experimental.agent_loop.tool_parser:FunctionCall": "a question in a turn",
    "verl.experimental.agent_loop.tool_parser:ToolParser": "finds questions in a turn",
    "verl.experimental.separation.engine_workers:DetachActorWorker": "the actor's engine in separate_async",
    "verl.model_merger.base_model_merger:ModelMergerConfig": "comprl export",
    "verl.model_merger.fsdp_model_merger:FSDPModelMerger": "comprl export",
    "verl.plugin.platform:PlatformBase": "the CPU as a platform",
    "verl.plugin.platform:PlatformRegistry": "the CPU as a platform",
    "verl.plugin.platform:get_platform": "the device that verl has chosen",
    "verl.single_controller.base:Worker._query_dispatch_info": "equal work for the extractor's ranks",
    "verl.single_controller.base.decorator:Dispatch": "orders of ours to an engine's workers",
    "verl.single_controller.base.decorator:register": "orders of ours to an engine's workers",
    "verl.single_controller.ray:RayClassWithInitArgs": "the extractor's workers",
    "verl.single_controller.ray:RayResourcePool": "the extractor's device slots",
    "verl.single_controller.ray:RayResourcePool.get_placement_groups": "slots that are reserved before",
    "verl.single_controller.ray:RayWorkerGroup": "the extractor's workers",
    "verl.single_controller.ray:base": "slots that are reserved before",
    "verl.single_controller.ray:create_colocated_worker_cls": "the extractor's workers",
    "verl.single_controller.ray.base:RayResourcePool": "slots that are reserved before",
    "verl.single_controller.ray.base:ResourcePoolManager": "slots that are reserved before",
    "verl.single_controller.ray.base:ResourcePoolManager._check_resource_available": "slots that are reserved before",
    "verl.single_controller.ray.base:sort_placement_group_by_node_ip": "slots that are reserved before",
    "verl.tools.base_tool:BaseTool": "search_and_ask as a tool of other agent loops",
    "verl.tools.schemas:OpenAIFunctionToolSchema": "search_and_ask as a tool of other agent loops",
    "verl.tools.schemas:ToolResponse": "search_and_ask as a tool of other agent loops",
    "verl.trainer.constants_ppo:PPO_RAY_RUNTIME_ENV": "environment of Ray's workers",
    "verl.trainer.constants_ppo:get_ppo_ray_runtime_env": "environment of Ray's workers",
    "verl.trainer.distillation:is_distillation_enabled": "slots of verl's teacher",
    "verl.trainer.ppo.v1.trainer_base:RayWorkerGroup": "the environment of the actor's workers",
    "verl.trainer.ppo.checkpoint_callback:CheckpointCallback": "a checkpoint is complete before it gets its name",
    "verl.trainer.ppo.core_algos:ADV_ESTIMATOR_REGISTRY": "checked to have ours",
    "verl.trainer.ppo.core_algos:POLICY_LOSS_REGISTRY": "checked to have ours",
    "verl.trainer.ppo.core_algos:compute_policy_loss_cispo": "Eq. 3",
    "verl.trainer.ppo.core_algos:register_adv_est": "makes our advantage selectable",
    "verl.trainer.ppo.core_algos:register_policy_loss": "makes our CISPO selectable",
    "verl.trainer.ppo.utils:Role": "the worker of an engine can be ours",
    "verl.trainer.ppo.utils:need_critic": "a critic cannot be shared by the runs of a sweep; verl checks its settings",
    "verl.trainer.ppo.utils:need_reference_policy": "verl checks its settings",
    "verl.trainer.ppo.v1:AgentLoopManagerTQ": "processes that play episodes",
    "verl.trainer.ppo.v1:get_trainer_cls": "finds our trainers",
    "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopManagerTQ": "processes that play episodes",
    "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._terminal_eviction_reasons": "groups that leave the buffer",
    "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._wait_for_next_poll": "a stop while rollouts run",
    "verl.trainer.ppo.v1.replay_buffer:ReplayBufferAsync": "buffer of the asynchronous trainers",
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer": "base of all trainers",
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
    "verl.trainer.ppo.v1.trainer_base:Tracking": "given a config without secrets",
    "verl.trainer.ppo.v1.trainer_base:TRAINER_REGISTRY": "checked to have ours",
    "verl.trainer.ppo.v1.trainer_base:register_trainer": "makes our trainers selectable",
    "verl.trainer.ppo.v1.trainer_colocate_async:PPOTrainerColocateAsync": "base of comprl_colocate_async",
    "verl.trainer.ppo.v1.trainer_separate_async:HybridEngineMode": "what the trainer's GPUs do",
    "verl.trainer.ppo.v1.trainer_separate_async:PPOTrainerSeparateAsync": "base of comprl_separate_async",
    "verl.trainer.ppo.v1.trainer_separate_async:PPOTrainerSeparateAsync.switch_to_trainer": "the end of a run",
    "verl.trainer.ppo.v1.trainer_separate_async:logger": "takes an argument that verl gives it",
    "verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync": "base of comprl_sync",
    "verl.utils:rollout_trace": "traces of episodes",
    "verl.utils:tensordict_utils": "batches",
    "verl.utils.checkpoint.checkpoint_manager:BaseCheckpointManager": "checkpoints of a lent engine",
    "verl.utils.config:omega_conf_to_dataclass": "configs of workers and checkpoint engines",
    "verl.utils.config:validate_config": "verl's own checks of a config",
    "verl.utils.debug:marked_timer": "times of a step",
    "verl.utils.device:auto_set_device": "the device of a config",
    "verl.utils.distributed:initialize_global_process_group_ray": "patched on a CPU",
    "verl.utils.import_utils:load_class_from_fqn": "a configured manager of agent loops",
    "verl.utils.memory_utils:aggressive_empty_cache": "memory of an engine that begins again",
    "verl.utils.metric:reduce_metrics": "metrics of an update of the extractor",
    "verl.utils.profiler:simple_timer": "times of an episode",
    "verl.utils.rollout_trace:RolloutTraceConfig": "traces of episodes",
    "verl.utils.rollout_trace:_trace_enabled": "traces of episodes",
    "verl.utils.rollout_trace:rollout_trace_attr": "traces of episodes",
    "verl.utils.rollout_trace:rollout_trace_op": "traces of episodes",
    "verl.utils.seqlen_balancing:calculate_workload": "equal work for the extractor's ranks",
    "verl.utils.seqlen_balancing:get_seqlen_balanced_partitions": "equal work for the extractor's ranks",
    "verl.utils.tensordict_utils:assign_non_tensor": "batches",
    "verl.utils.tensordict_utils:assign_non_tensor_data": "batches",
    "verl.utils.tensordict_utils:assign_non_tensor_stack": "batches",
    "verl.utils.tensordict_utils:get": "batches",
    "verl.utils.tensordict_utils:get_tensordict": "batches",
    "verl.utils.tokenizer:continuous_token_wiring": "the check of chat templates",
    "verl.utils.tokenizer:hf_tokenizer": "tokenizers of both models",
    "verl.utils.tokenizer:normalize_token_ids": "token ids of a chat template",
    "verl.utils.tokenizer.continuous_token:ContinuousTokenBuilder": "exact token stream of an episode",
    "verl.utils.tokenizer.continuous_token_wiring:create_continuous_token_builder": "the check of chat templates",
    "verl.utils.tokenizer.continuous_token_wiring:get_continuous_token_builder_class": "the check of chat templates",
    "verl.utils.tokenizer.continuous_token_wiring:resolve_continuous_token_model_family": "the check of chat templates",
    "verl.utils.torch_dtypes:PrecisionType": "size of the largest tensor of a weight sync",
    "verl.utils.torch_functional:masked_mean": "metrics of the extractor's loss",
    "verl.utils.tracking:Tracking": "names of metrics backends",
    "verl.workers.rollout.base:_ROLLOUT_REGISTRY": "makes the extractor's server adapter selectable",
    "verl.workers.rollout.llm_server:FullyAsyncLLMServerClient": "resumes aborted generations",
    "verl.workers.rollout.llm_server:LLMServerClient": "generation",
    "verl.workers.rollout.llm_server:LLMServerManager": "servers of the extractor",
    "verl.workers.rollout.replica:RolloutMode": "the extractor's server",
    "verl.workers.rollout.replica:RolloutReplicaRegistry": "makes the extractor's server selectable",
    "verl.workers.rollout.replica:TokenOutput": "what a server has generated",
    "verl.workers.rollout.utils:ensure_async_iterator": "weights that are sent in parts",
    "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:BucketedWeightSender": "its behaviour: limited",
    "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMReplica": "the extractor's server",
    "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMReplica.init_hybrid": "the extractor's server",
    "verl.workers.rollout.vllm_rollout.vllm_rollout:ServerAdapter": "its side in the engine's process",
}
"""What we use of verl (``module:name`` or ``module:class.method``), and for what: all that is imported, and the methods
that are overridden or called. A few names occur nowhere else here: what they do is relied on."""


_SHOWN = 3
"""Missing symbols that an error names."""


class IncompatibleVerlError(RuntimeError):
    """verl is missing, its version is not supported, or it cannot be imported."""

    def __init__(self, problem: str, remedy: str) -> None:
        """Say what is wrong, and the command that mends it; "" if none is known."""
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        """Return both on one line."""
        return f"{self.problem}: {self.remedy}" if self.remedy else self.problem


def installed_verl() -> str:
    """Return verl's version.

    Raises:
        IncompatibleVerlError: If verl is missing or its version is not supported.
    """
    try:
        installed = version("verl")
    except PackageNotFoundError:
        raise IncompatibleVerlError("verl is not installed", f"pip install verl=={SUPPORTED_VERL[-1]}") from None
    if installed not in SUPPORTED_VERL:
        raise IncompatibleVerlError(
            f"verl {installed} is installed, verl-comprl works with {', '.join(SUPPORTED_VERL)}",
            f"pip install verl=={SUPPORTED_VERL[-1]}",
        )
    return installed


def import_verl() -> None:
    """Import verl, and Hydra, with which its config is composed.

    Raises:
        IncompatibleVerlError: If that cannot be done.
    """
    installed = installed_verl()
    try:
        import_module("hydra")
        import_module("verl")
    except Exception as error:  # a library that does not fit raises anything
        raise _not_importable(installed, error) from error


def check_symbols() -> None:
    """Import every verl symbol that we use; slow, so only for start-up and ``comprl doctor``.

    After :func:`verl_comprl.plugin.verify`: what fails in a registration of ours is no fault of verl.

    Raises:
        IncompatibleVerlError: If symbols are missing; names the first with the reasons, or a library that verl lacks.
    """
    installed = installed_verl()
    missing: dict[str, Exception] = {}
    for symbol, purpose in REQUIRED_SYMBOLS.items():
        module, _, name = symbol.partition(":")
        try:
            attrgetter(name)(_imported(module, name))
        except AttributeError:
            missing[symbol] = AttributeError(f"no such name; {purpose}")
        except Exception as error:  # a library that does not fit raises anything
            missing[symbol] = error
    if missing:
        raise _lacking(installed, missing)


def _lacking(installed: str, missing: Mapping[str, Exception]) -> IncompatibleVerlError:
    from verl_comprl.display.first_line import first_line  # not at the top, as below
    from verl_comprl.requirements import version_of

    library = next((error for error in missing.values() if _is_missing_library(error)), None)
    if version_of("vllm") is None:  # verl says that it supports no version None
        library = ModuleNotFoundError(name="vllm")
    if library:  # alone, since the rest may follow from it
        return _not_importable(installed, library)
    shown = [f"{symbol} ({first_line(error)})" for symbol, error in list(missing.items())[:_SHOWN]]
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    return IncompatibleVerlError(
        f"verl {installed} lacks what verl-comprl needs: {'; '.join(shown)}{more}",
        f"pip install --force-reinstall --no-deps verl=={SUPPORTED_VERL[-1]}",
    )


def _is_missing_library(error: Exception) -> bool:
    own = ("verl", "verl_comprl")
    return isinstance(error, ModuleNotFoundError) and bool(error.name) and error.name.partition(".")[0] not in own


def _not_importable(installed: str, error: Exception) -> IncompatibleVerlError:
    # Not at the top: every process that imports verl imports this module, and nearly nothing else of ours.
    from verl_comprl.requirements import OWN, install_command

    if _is_missing_library(error):
        library = getattr(error, "name", "")
        return IncompatibleVerlError(
            f"verl {installed} cannot be imported, {library} is missing", install_command(library)
        )
    # The innermost library in which it was raised, and not what that has called of Python itself.
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    libraries = (name for name in reversed(frames) if name.partition(".")[0] not in OWN)
    remedy = next(filter(None, map(install_command, libraries)), install_command("verl"))
    return IncompatibleVerlError(f"verl {installed} cannot be imported: {error!r}", remedy)


def _imported(module: str, name: str) -> ModuleType:
    """Import ``module``, and ``name`` too if it is a module in it, which is an attribute only afterwards."""
    found = import_module(module)
    if name.isidentifier() and not hasattr(found, name) and hasattr(found, "__path__"):
        try:
            import_module(f"{module}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{module}.{name}":  # it is there, and lacks something itself
                raise
    return found
