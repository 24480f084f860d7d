"""One training run, in a Ray that has been started: its trainer, its agent loops, and how a signal stops it."""

import copy
import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import FrameType
from typing import Any

from verl_comprl.config.reading import ConfigError
from verl_comprl.config.tree import ComprlConfig
from verl_comprl.display.introduction import describe_training
from verl_comprl.platform.signals import out_of_reach_of_terminal, stop_signals
from verl_comprl.platform.under_way import doing

TRACKING_SECONDS = 120.0
"""Seconds that the metrics backends may take to send the rest of a run's metrics."""

_QUEUE_SECONDS = 10.0
"""Seconds to wait for the TransferQueue of a run that has just ended to disappear."""


def complete_config(config: Any) -> None:
    """Fill in what depends on the device, the CPU where there is no accelerator, and on the extractor's model."""
    from verl.utils.device import auto_set_device

    from verl_comprl.config.models import bound_server
    from verl_comprl.config.slots import needed_slots
    from verl_comprl.platform import detection

    detection.complete_config(config, needed_slots(config))
    bound_server(config.extractor)
    auto_set_device(config)


def check_config(config: Any) -> ComprlConfig:
    """Check a run's config, ours and verl's part, and fill in what depends on the device.

    Raises:
        ConfigError: If a setting of ours or of the extractor is wrong; verl's own checks raise other errors.
    """
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    from verl_comprl.config.models import bound_calls
    from verl_comprl.config.paths import use_absolute_paths
    from verl_comprl.config.validation import validate
    from verl_comprl.rollout.template_check import check_templates
    from verl_comprl.trainer.extractor.runtime import extractor_view

    use_absolute_paths(config)
    comprl = validate(config)
    check_templates(config, comprl)
    complete_config(config)
    if comprl.has_extractor_engine:
        bound_calls(config.extractor.rollout)
    config.transfer_queue.enable = True  # verl's V1 trainers need it
    has_reference, has_critic = need_reference_policy(config), need_critic(config)
    validate_config(config=config, use_reference_policy=has_reference, use_critic=has_critic)
    if comprl.has_extractor_engine:
        view = extractor_view(config)
        view.actor_rollout_ref.rollout.name = "vllm"  # ours is that of verl under another name, by which it checks
        try:
            validate_config(config=view, use_reference_policy=False, use_critic=False)
        except Exception as error:
            raise ConfigError(
                f"the extractor's model (extractor in the place of actor_rollout_ref): {error}"
            ) from error
    return comprl


def describe_ray_start(config: Any) -> str:
    """Return what :func:`start_ray` does with this config."""
    from verl_comprl.platform.detection import on_existing_cluster

    ray_init = config.ray_kwargs.ray_init
    if on_existing_cluster(ray_init):
        return f"connecting to Ray at {ray_init.get('address') or os.environ['RAY_ADDRESS']}"
    return "starting Ray"


def start_ray(config: Any) -> None:
    """Start Ray on the loopback interface, or connect to a cluster, unless this process has done so.

    Another interface is chosen with ``+ray_kwargs.ray_init._node_ip_address=ADDRESS``.

    Raises:
        ConfigError: If the address of a cluster is wrong or nobody answers there, or if anybody who reaches the other
            interface would be let in.
    """
    import ray
    from omegaconf import OmegaConf
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    from verl_comprl.config.secrets import worker_secrets
    from verl_comprl.platform.detection import on_existing_cluster
    from verl_comprl.platform.patches import random_ray_job, ray_keeps_sigterm_handler, ray_on_loopback
    from verl_comprl.platform.ray_daemons import set_daemon_variables
    from verl_comprl.platform.ray_folder import use_private_folder
    from verl_comprl.platform.ray_token import protect_token, token_is_disabled
    from verl_comprl.platform.temporary import make_folders

    if ray.is_initialized():
        return
    settings: Any = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
    interface, variables = nullcontext(), _worker_variables()
    if on_existing_cluster(settings):
        address = settings.get("address") or os.environ["RAY_ADDRESS"]
        if "://" in address:
            raise ConfigError(f"Ray's address is {address}; give the head's host:port (Ray Client is not supported)")
        # Its slots are those of its nodes; check_cluster_slots compares.
        settings |= {"num_cpus": None, "num_gpus": None}
    else:
        if any(worker_secrets(config)):  # which Ray writes into its logs
            use_private_folder()
        set_daemon_variables(os.environ)
        settings["address"] = "local"  # and not a Ray that happens to run on this machine, which has other slots
        variables |= make_folders()
        if not (elsewhere := settings.get("_node_ip_address")):
            interface = ray_on_loopback()
        elif token_is_disabled():
            raise ConfigError(
                f"RAY_AUTH_MODE=disabled lets anybody who reaches {elsewhere} (_node_ip_address) run code: unset it"
            )
    defaults = get_ppo_ray_runtime_env(config)
    defaults.setdefault("env_vars", {}).update(variables, TRANSFER_QUEUE_ENABLE="1")
    runtime_env = OmegaConf.to_container(OmegaConf.merge(defaults, settings.pop("runtime_env", {})))
    settings["log_to_driver"] = bool(settings["log_to_driver"])
    protect_token()
    try:
        with interface, ray_keeps_sigterm_handler(), random_ray_job(), out_of_reach_of_terminal():
            ray.init(runtime_env=runtime_env, logging_level=logging.ERROR, **settings)
        protect_token()  # which Ray may have made
    except ConnectionError as error:
        address = settings.get("address") or os.environ.get("RAY_ADDRESS")
        hint = "" if "RAY_AUTH_MODE" in os.environ else "; if it asks for a token, set RAY_AUTH_MODE=token here, too"
        raise ConfigError(f"no Ray cluster can be reached at {address} (RAY_ADDRESS): {error}{hint}") from error


def queue_settings(config: Any) -> Any:
    """Return TransferQueue's part of a config, resolved: it becomes part of another tree."""
    from omegaconf import OmegaConf

    settings: Any = OmegaConf.to_container(config.transfer_queue, resolve=True)
    return OmegaConf.create(settings)


def check_transfer_queue() -> None:
    """Check that no other run uses this Ray cluster; before TransferQueue starts, and after it.

    There is one TransferQueue per cluster. A second run would join the first one's, share its partitions and end it.

    Raises:
        ConfigError: If another run has it.
    """
    from verl_comprl.platform.ray_session import foreign_transfer_queue

    deadline = time.monotonic() + _QUEUE_SECONDS
    while foreign_transfer_queue():
        if time.monotonic() > deadline:
            raise ConfigError(
                "another run uses this Ray cluster, which has one TransferQueue; wait until that run has ended, or "
                "start without RAY_ADDRESS"
            )
        time.sleep(0.5)


def _worker_variables() -> dict[str, str]:
    """Return the variables set here for the workers: those of a running cluster do not inherit them."""
    from verl.trainer.constants_ppo import PPO_RAY_RUNTIME_ENV

    from verl_comprl.display import quiet
    from verl_comprl.platform import detection
    from verl_comprl.record.redaction import REDACT

    names = {*PPO_RAY_RUNTIME_ENV["env_vars"], *quiet.VARIABLES, "COMPRL_VERBOSE", REDACT, *detection.VARIABLES}
    return {name: os.environ[name] for name in sorted(names) if name in os.environ}


class Training:
    """Trainer and agent loops of a run; verl's task runner has them in a Ray actor, out of reach of a signal."""

    def __init__(self, config: Any, engines: Any = None) -> None:
        """Make the trainer, which starts nothing yet.

        Args:
            config: The run's config, checked; it is not changed.
            engines: The :class:`~verl_comprl.trainer.engines.Engines` that the run shares with others.
        """
        from omegaconf import OmegaConf
        from verl.trainer.ppo.v1 import get_trainer_cls

        self._given = config
        self.config = copy.deepcopy(config)  # which the trainer changes
        OmegaConf.resolve(self.config)
        self.trainer: Any = get_trainer_cls(config.trainer.v1.trainer_mode)(config=self.config)
        self.agent_loops: Any = None
        if engines is not None:
            self.trainer.engines = engines

    def watched(self, display: Any) -> AbstractContextManager[None]:
        """Return the block in which a watchdog looks at the run; :meth:`run` and what comes before it belong there."""
        from verl_comprl.trainer.watchdog.watching import watching

        return watching(self.trainer, display.announce)

    def prepare(self) -> None:
        """Start the run's own processes without waiting for them; its trainer must have been lent an actor."""
        self.trainer.prepare()
        self._start_agent_loops()

    def _start_agent_loops(self) -> None:
        """Start the processes that play episodes."""
        from verl.trainer.ppo.v1 import AgentLoopManagerTQ
        from verl.utils.import_utils import load_class_from_fqn

        manager_class = self.config.actor_rollout_ref.rollout.agent.get("agent_loop_manager_class")
        loops: Any = load_class_from_fqn(manager_class) if manager_class else AgentLoopManagerTQ
        with doing("start of the agent loops"):
            self.agent_loops = loops.create(
                config=self.config,
                llm_client=self.trainer.get_llm_client(),
                teacher_client=self.trainer.get_teacher_client(),
                reward_loop_worker_handles=self.trainer.get_reward_handles(),
            )

    def run(self, display: Any, *, guided_fraction: float | None, on_start: Callable[[int], None]) -> None:
        """Start what is missing, train to the end and close the bank; to be called in :meth:`watched`.

        Args:
            display: Shows the run.
            guided_fraction: Share of guided attempts; ``None`` without experience.
            on_start: Called with the number of steps, when the models have started and the run's folder is this run's.
        """
        from verl_comprl.config.saved import tracked_config
        from verl_comprl.platform.patches import trackers_get

        trainer = self.trainer
        finished = False
        try:
            with display.phase("start", "starting the models, their servers and the workers"):
                trainer.progress = display
                trainer.init()
                if self.agent_loops is None:
                    self._start_agent_loops()
                on_start(trainer.total_training_steps)
            if not self.config.trainer.val_only:
                display.note(describe_training(self.config, guided_fraction, after=trainer.global_steps))
            with _stop_on_signal(trainer, display), trackers_get(tracked_config(self._given)):
                trainer.fit(self.agent_loops)
            finished = True
        finally:
            with uninterrupted():
                try:
                    trainer.close()  # first: a metrics backend that cannot finish raises
                finally:
                    self._finish_tracking(0 if finished else 1, display)

    def _finish_tracking(self, exit_code: int, display: Any) -> None:
        """Let the metrics backends end, which wait for their servers without a limit.

        In this thread: mlflow knows of a run only in the one that began it.
        """
        from verl_comprl.errors import WaitTimeout
        from verl_comprl.platform.waiting import interrupted_after

        tracking = getattr(self.trainer, "logger", None)
        if tracking is None:
            return
        try:
            with interrupted_after(TRACKING_SECONDS, "the metrics backends to finish"):
                tracking.finish(exit_code=exit_code)
        except WaitTimeout as error:
            display.announce(
                f"{error}; the run ends without them. What {self.config.trainer.logger} lack is in metrics.jsonl"
            )

    @property
    def was_stopped(self) -> bool:
        """Whether somebody has asked the run to stop, however it has ended."""
        return self.trainer.stop.made

    def release(self) -> None:
        """End the agent loops and remove what the run has left in TransferQueue, so that another run can begin.

        Raises:
            WaitTimeout: If TransferQueue does not answer: the watchdog of the run does not look any more.
        """
        import ray
        import transfer_queue as tq

        from verl_comprl.platform.waiting import call_within
        from verl_comprl.trainer.step.keys import CLEAR_SECONDS, list_keys

        for worker in getattr(self.agent_loops, "agent_loop_workers", ()):
            ray.kill(worker)
        for partition, keys in list_keys().items():
            if keys:
                clear = partial(tq.kv_clear, list(keys), partition)
                call_within(clear, CLEAR_SECONDS, "TransferQueue to remove what a run has left")


@contextmanager
def _stop_on_signal(trainer: Any, display: Any):
    """First Ctrl-C, SIGTERM or SIGHUP: finish an update that is running and write a checkpoint. Second: stop at once.

    Of the same kind: a scheduler may send SIGTERM when time is up, some time after the SIGINT that it was told to send.
    The kernel tells of the launcher's death with SIGTERM as well (``platform/child.py``). Where that follows the first
    signal, as torchrun kills a launcher that takes long, it is not the user's second one.
    """
    parent = os.getppid()

    def stop_at_once(number: int, frame: FrameType | None) -> None:
        nonlocal parent
        if os.getppid() == parent:
            signal.default_int_handler(number, frame)
        parent = os.getppid()

    def stop(number: int, _: FrameType | None) -> None:
        nonlocal parent
        parent = os.getppid()
        # A terminal that is closed sends several: its shell and the kernel.
        signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP else stop_at_once)
        trainer.request_stop()
        display.announce(
            "stopping as soon as there is a checkpoint of what has been trained; press Ctrl-C again to stop without one"
        )

    previous = {number: signal.signal(number, stop) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def uninterrupted():
    """Ignore signals while shutting down: an impatient second one must not leave servers running."""
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def interrupt_on_signals() -> None:
    """Let the other signals that stop a run do what Ctrl-C does, before and after it is trained."""
    for number in stop_signals()[1:]:
        signal.signal(number, signal.default_int_handler)
