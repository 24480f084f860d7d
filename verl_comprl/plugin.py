"""Registers verl-comprl's trainers, advantage estimator, loss, agent loop, extractor server and CPU platform with verl.

verl loads this module through the entry point ``verl.plugins`` on every ``import verl``, in every process, so it must
import almost nothing: each registration waits until verl itself imports the registry it goes into. verl swallows errors
of plugins; :func:`verify` raises them, and the launcher and ``comprl doctor`` call it.
"""

import os
import traceback
from types import ModuleType

from wrapt import register_post_import_hook

from verl_comprl.compat import check_symbols, installed_verl
from verl_comprl.names import ADVANTAGE_ESTIMATOR, AGENT_LOOP, EXTRACTOR_LOSS, EXTRACTOR_ROLLOUT, FADING_LOSS, TRAINERS


class PluginLeftOut(RuntimeError):
    """``VERL_USE_EXTERNAL_PLUGINS`` names other plugins of verl, and not this one."""


def _register_trainers(_: ModuleType) -> None:
    import verl_comprl.trainer.trainer  # noqa: F401  the decorators register


def _register_algorithms(_: ModuleType) -> None:
    import verl_comprl.trainer.extractor.loss
    import verl_comprl.trainer.step.estimator  # noqa: F401  the decorators register


def _register_agent_loop(_: ModuleType) -> None:
    import verl_comprl.rollout.agent_loop  # noqa: F401  the decorator registers


def _register_extractor_adapter(base: ModuleType) -> None:
    adapter = "verl_comprl.trainer.extractor.server_adapter.ExtractorServerAdapter"
    base._ROLLOUT_REGISTRY[(EXTRACTOR_ROLLOUT, "async")] = adapter


def _register_extractor_replica(replica: ModuleType) -> None:
    def load() -> type:
        from verl_comprl.trainer.extractor.replica import ExtractorReplica

        return ExtractorReplica

    replica.RolloutReplicaRegistry.register(EXTRACTOR_ROLLOUT, load)


def _register_cpu_platform(_: ModuleType) -> None:
    import verl_comprl.platform.cpu  # noqa: F401  the decorators register


def _patch_process_groups(distributed: ModuleType) -> None:
    from verl_comprl.platform.patches import use_gloo_once

    use_gloo_once(distributed)


def _patch_traces(rollout_trace: ModuleType) -> None:
    from verl_comprl.platform.patches import keep_trackio_run

    keep_trackio_run(rollout_trace)


def register() -> None:
    """Hook every registration to the import of the registry it goes into."""
    installed_verl()
    register_post_import_hook(_register_trainers, "verl.trainer.ppo.v1")
    register_post_import_hook(_register_algorithms, "verl.trainer.ppo.core_algos")
    register_post_import_hook(_register_agent_loop, "verl.experimental.agent_loop")
    register_post_import_hook(_register_extractor_adapter, "verl.workers.rollout.base")
    register_post_import_hook(_register_extractor_replica, "verl.workers.rollout.replica")
    register_post_import_hook(_patch_traces, "verl.utils.rollout_trace")
    if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":  # detection.uses_cpu, which is not to be imported
        # verl's FSDP engine is registered for "cuda" and "npu" but runs on any torch device.
        os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")
        register_post_import_hook(_register_cpu_platform, "verl.plugin.platform")
        register_post_import_hook(_patch_process_groups, "verl.utils.distributed")


def verify() -> None:
    """Import verl's registries and check that all our names are in them.

    To be called before anything else imports them: a registration that fails does so once.

    Raises:
        PluginLeftOut: If verl's workers have been told not to load it.
        RuntimeError: If a name is missing, or a registration failed, which is then the cause of the error.
        IncompatibleVerlError: If it failed because verl or a library of it is not as it should be.
    """
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower()
    if policy != "auto" and "comprl" not in (name.strip() for name in policy.split(",")):
        raise PluginLeftOut(
            f"VERL_USE_EXTERNAL_PLUGINS={policy} keeps verl's workers from loading verl-comprl; "
            "unset it, or use auto or a list with comprl"
        )
    try:
        from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
        from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY
        from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
        from verl.workers.rollout.base import _ROLLOUT_REGISTRY
        from verl.workers.rollout.replica import RolloutReplicaRegistry
    except Exception as error:
        check_symbols()  # the registrations do not run again, so that this finds what verl itself lacks
        raise RuntimeError(
            f"registration of verl-comprl with verl failed: {error!r} in {_module_of_ours(error)}"
        ) from error
    registered = {
        "trainer": (TRAINERS, TRAINER_REGISTRY),
        "advantage estimator": ((ADVANTAGE_ESTIMATOR,), ADV_ESTIMATOR_REGISTRY),
        "policy loss": ((EXTRACTOR_LOSS, FADING_LOSS), POLICY_LOSS_REGISTRY),
        "agent loop": ((AGENT_LOOP,), _agent_loop_registry),
        "rollout adapter": (((EXTRACTOR_ROLLOUT, "async"),), _ROLLOUT_REGISTRY),
        "rollout replica": ((EXTRACTOR_ROLLOUT,), RolloutReplicaRegistry._registry),
    }
    missing = [f"{kind} {name!r}" for kind, (names, table) in registered.items() for name in names if name not in table]
    if missing:
        raise RuntimeError(f"verl-comprl is installed but not registered with verl: {', '.join(missing)} missing")


def _module_of_ours(error: BaseException) -> str:
    """Return the innermost of our modules in which an error was raised."""
    names = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next(name for name in reversed(names) if name.startswith("verl_comprl."))


register()
