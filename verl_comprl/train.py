"""Launcher of a training run: ``python -m verl_comprl.train key=value …`` (also ``comprl train`` and torchrun).

Composes and checks the config, starts Ray, runs the trainer in this process and leaves nothing behind. Under torchrun
the first process does that and the others return at once, since verl starts its own workers.
"""

import logging
import os
import signal
import sys
import warnings
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

# Before verl, vLLM or Ray are imported: their logs would bury the run's own lines.
_QUIET = {
    "VERL_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TQ_LOGGING_LEVEL": "ERROR",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_DEDUP_LOGS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TQDM_DISABLE": "1",  # verl's own bar; ours is drawn by rich
    "PYTHONWARNINGS": "ignore",
}
# What Hydra can be told by its primary config only, which may be a recipe of the user's.
_HYDRA_DEFAULTS = (
    "hydra.searchpath=[pkg://verl.trainer.config]",
    "hydra.output_subdir=null",  # no outputs/ folder per launch: a run writes to trainer.default_local_dir
    "hydra.run.dir=.",
    "hydra/job_logging=stdout",
    "hydra.job_logging.root.level=WARNING",
)
_TORCHRUN_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def prepare_environment() -> bool:
    """Set what libraries read at import; returns ``False`` in a torchrun process that has nothing to do."""
    first = os.environ.get("RANK", "0") == "0"
    for name in _TORCHRUN_VARIABLES:
        os.environ.pop(name, None)  # Ray workers inherit them and verl's would be wrong
    if os.environ.get("COMPRL_VERBOSE", "0") == "0":
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        warnings.filterwarnings("ignore")  # for this process; the variable is for its workers
    return first


def run(config: Any) -> int:
    """Run one training; returns the exit code.

    Args:
        config: The composed config.
    """
    from verl_comprl.display.terminal import Display, redirect_verl_output

    display = Display()
    log = Path(config.trainer.default_local_dir) / "train.log"
    with redirect_verl_output(log) if os.environ.get("COMPRL_VERBOSE", "0") == "0" else nullcontext():
        return _run(config, display)


def _run(config: Any, display: Any) -> int:
    import ray
    from omegaconf import OmegaConf
    from verl.utils.config import validate_config
    from verl.utils.device import auto_set_device

    from verl_comprl import plugin
    from verl_comprl.compat import check_symbols
    from verl_comprl.config.saved import save_config
    from verl_comprl.config.validation import ConfigError, check_slots, validate
    from verl_comprl.experience import SnapshotError, StoreError
    from verl_comprl.trainer.extractor_runtime import extractor_view
    from verl_comprl.trainer.trainer import RunInterrupted

    try:
        check_symbols()
        plugin.verify()
        auto_set_device(config)
        validate(config)
        for model in (config, *([extractor_view(config)] if config.comprl.experience else [])):
            validate_config(config=model, use_reference_policy=False, use_critic=False)
        _start_ray(config)
        check_slots(config, ray.cluster_resources())
    except (ConfigError, RuntimeError, AssertionError, ValueError) as error:
        ray.shutdown()
        display.fail(str(error))
        return 2
    try:
        save_config(config, Path(config.trainer.default_local_dir))
        OmegaConf.resolve(config)
        _train(config, display)
    except RunInterrupted as interrupted:
        display.note(str(interrupted))
        return 130
    except (FileNotFoundError, StoreError, SnapshotError) as error:
        # What a Ray actor raised arrives as an exception of its own type whose text is the whole remote traceback.
        display.fail(str(getattr(error, "cause", None) or error))
        return 2
    except KeyboardInterrupt:
        display.fail("interrupted before a checkpoint could be written")
        return 130
    finally:
        with _uninterrupted():
            ray.shutdown()
    return 0


def _start_ray(config: Any) -> None:
    import ray
    from omegaconf import OmegaConf
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    if ray.is_initialized():
        return
    settings: Any = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
    defaults = get_ppo_ray_runtime_env(config)
    defaults.setdefault("env_vars", {})["TRANSFER_QUEUE_ENABLE"] = "1"
    runtime_env = OmegaConf.to_container(OmegaConf.merge(defaults, settings.pop("runtime_env", {})))
    settings["log_to_driver"] = bool(settings["log_to_driver"])
    ray.init(runtime_env=runtime_env, logging_level=logging.ERROR, **settings)


def _train(config: Any, display: Any) -> None:
    """Run the trainer in this process; verl's task runner does the same in a Ray actor, out of reach of a signal."""
    import transfer_queue as tq
    from verl.trainer.ppo.v1 import AgentLoopManagerTQ, get_trainer_cls
    from verl.utils.import_utils import load_class_from_fqn

    config.transfer_queue.enable = True
    tq.init(config.transfer_queue)
    trainer: Any = None
    finished = False
    try:
        with display.phase("start"):
            trainer = get_trainer_cls(config.trainer.v1.trainer_mode)(config=config)
            trainer.progress = display
            trainer.init()
            manager_class = config.actor_rollout_ref.rollout.agent.get("agent_loop_manager_class")
            loops = load_class_from_fqn(manager_class) if manager_class else AgentLoopManagerTQ
            agent_loops: Any = loops.create(
                config=config,
                llm_client=trainer.get_llm_client(),
                teacher_client=trainer.get_teacher_client(),
                reward_loop_worker_handles=trainer.get_reward_handles(),
            )
        with _stop_on_signal(trainer, display):
            trainer.fit(agent_loops)
        finished = True
    finally:
        with _uninterrupted():
            tracking = getattr(trainer, "logger", None)
            if tracking is not None:
                tracking.finish(exit_code=0 if finished else 1)
            if trainer is not None:
                trainer.close()
            tq.close()


@contextmanager
def _stop_on_signal(trainer: Any, display: Any):
    """First Ctrl-C or SIGTERM: finish the step and write a checkpoint. Second: stop at once."""

    def stop(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.default_int_handler)
        display.note("stopping after this step, with a checkpoint; once more to stop at once")
        trainer.request_stop()

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _uninterrupted():
    """Shut down without being shut down: an impatient second signal must not leave servers behind."""
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def main(arguments: list[str] | None = None) -> int:
    """Compose the config from ``arguments`` (Hydra overrides) and run."""
    if not prepare_environment():
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    import hydra

    code = 0

    @hydra.main(version_base=None, config_path="config", config_name="comprl_trainer")
    def entry(config: Any) -> None:
        nonlocal code
        code = run(config)

    given = sys.argv[1:] if arguments is None else arguments
    named = {argument.partition("=")[0] for argument in given}
    defaults = [default for default in _HYDRA_DEFAULTS if default.partition("=")[0] not in named]
    sys.argv = [sys.argv[0], *given, *defaults]
    entry()
    return code


if __name__ == "__main__":
    sys.exit(main())
