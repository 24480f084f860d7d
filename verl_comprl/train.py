"""Launches a training run: ``python -m verl_comprl.train key=value …`` (also ``comprl train``).

Composes and checks the config, starts Ray or connects to the cluster of ``RAY_ADDRESS``, runs the trainer in this
process and stops at the end what it has started. Under torchrun on one node the first process does that and the others
return immediately, since verl starts its own workers; for several nodes there is ``verl_comprl.launch``.
"""

import asyncio
import os
import sys
import traceback
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from verl_comprl.requirements import missing_is_one_line

with missing_is_one_line(__name__):
    from verl_comprl.compat import IncompatibleVerlError, check_symbols, import_verl, installed_verl
    from verl_comprl.config.arm_check import unknown_arms
    from verl_comprl.config.composing import composing_mistake, one_line, unknown_options
    from verl_comprl.config.reading import ConfigError, unknown_overrides
    from verl_comprl.display.long_waits import said_when_long
    from verl_comprl.display.quiet import is_verbose, quiet_libraries
    from verl_comprl.errors import INTERRUPTED
    from verl_comprl.platform import detection
    from verl_comprl.platform.launchers import node_count, strip_launcher_variables
    from verl_comprl.platform.under_way import doing
    from verl_comprl.training import (
        Training,
        check_config,
        check_transfer_queue,
        describe_ray_start,
        interrupt_on_signals,
        queue_settings,
        start_ray,
        uninterrupted,
    )

_HELP = """\
usage: comprl train [--config-dir DIR --config-name NAME] key=value …

Trains an actor and an experience extractor; settings are Hydra overrides. Needed are:

  data.train_files=FILE data.val_files=FILE   tasks, made with comprl data
  actor_rollout_ref.model.path=MODEL          the actor: a folder, or a name on the Hugging Face hub
  extractor.model.path=MODEL                  the extractor
  data.train_batch_size=N                     prompts per step: at most as many as tasks
  data.max_prompt_length=N data.max_response_length=N
                                              tokens: rules, entry, first observation; the whole episode (512 each)
  actor_rollout_ref.actor.use_dynamic_bsz=true extractor.actor.use_dynamic_bsz=true
                                              or micro-batches of your own sizes
  trainer.n_gpus_per_node=N comprl.extractor.n_gpus_per_node=N
                                              the actor's GPUs (8 unless set) and the extractor's (1)

Checkpoints are written every trainer.save_freq steps, evaluations made before the first step and then every
trainer.test_freq steps (-1: no more). Every key of verl's ppo_trainer config can be set; what this package adds is
under comprl and extractor, and arm=NAME chooses a variant of the method (arm=baseline is plain GRPO).

  comprl train --cfg job                      prints the whole config and starts nothing
  comprl train --info defaults-tree           prints the files that it is made from

With RAY_ADDRESS set it runs on that Ray cluster; several nodes with torchrun or SLURM: docs/launch.md.
"""
# Settings that Hydra takes from the primary config only, which may be a recipe of the user.
_HYDRA_DEFAULTS = (
    "hydra.searchpath=[pkg://verl.trainer.config]",
    "hydra.output_subdir=null",  # no outputs/ folder for each launch: a run writes to trainer.default_local_dir
    "hydra.run.dir=.",
    "hydra/job_logging=stdout",
    "hydra.job_logging.root.level=WARNING",
)
_NOT_SAVED = "interrupted; nothing was saved since the last checkpoint"


def prepare_environment(*, cluster: bool | None = None) -> bool:
    """Set what libraries read when imported; returns ``False`` in a torchrun process that has nothing to do.

    Args:
        cluster: Whether the run is sent to an existing Ray cluster; None looks at ``RAY_ADDRESS``.
    """
    first = os.environ.get("RANK", "0") == "0"
    strip_launcher_variables(os.environ)
    if first:
        quiet_libraries()
        detection.select_platform(cluster=cluster)
    return first


def run(config: Any) -> int:
    """Run one training; returns the exit code.

    Args:
        config: The composed config.
    """
    from verl_comprl.config.paths import use_absolute_paths
    from verl_comprl.config.secrets import run_redactor
    from verl_comprl.display.redirect import redirect_verl_output
    from verl_comprl.display.terminal import Display

    clean = run_redactor(config)
    display = Display(live=not is_verbose(), clean=clean)
    use_absolute_paths(config)
    folder = config.trainer.get("default_local_dir")
    try:
        log = Path(folder or "") / "train.log"
        if not folder:
            raise OSError("it must name a folder")
        made = [path for path in (log, *log.parents) if not path.exists()]
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
    except OSError as error:
        display.fail(f"trainer.default_local_dir={folder!r}: {error}")
        return 2
    with nullcontext() if is_verbose() else redirect_verl_output(log, display.note, clean):
        try:
            if (comprl := _checked(config, display)) is None:
                _remove(made)  # a start that was refused leaves nothing
                return 2
            return _train(config, comprl, display)
        except KeyboardInterrupt:
            display.fail(_NOT_SAVED)
            return INTERRUPTED
        except Exception:  # whatever ends a run is shown once, in full
            text = traceback.format_exc().rstrip()
            display.fail(text)
            if not is_verbose():
                print(text)  # to the log
                display.note(f"All other output of this run is in {log}, the logs of Ray's workers in {_ray_logs()}.")
            return 1
        finally:
            display.close()


def _remove(made: list[Path]) -> None:
    """Remove what was made for the log, from the file outwards, as far as nothing else is in it."""
    with suppress(OSError):
        for path in made:
            path.unlink() if path.is_file() else path.rmdir()


def _ray_logs() -> str:
    return f"{os.environ.get('RAY_TMPDIR', '/tmp')}/ray/session_latest/logs"


def _checked(config: Any, display: Any) -> Any | None:
    """Return the settings of a run that can start, with Ray started for it; None if mistakes were shown."""
    import ray
    from hydra.errors import HydraException

    from verl_comprl import plugin
    from verl_comprl.config.asynchrony import asynchrony_notes
    from verl_comprl.config.secrets import worker_secrets
    from verl_comprl.config.validation import check_cluster_slots
    from verl_comprl.config.variants import variant_notes
    from verl_comprl.experience import StoreError
    from verl_comprl.experience.store import check_server
    from verl_comprl.platform.ray_folder import session_is_private
    from verl_comprl.platform.ray_session import end_ray

    try:
        plugin.verify()
        check_symbols()
        with said_when_long("checking settings, models and tasks", display.note):  # a model's hub may be asked
            comprl = check_config(config)
        if detection.uses_cpu():
            for line in (detection.describe_cpu(), *detection.slow_servers(config)):
                display.note(line)
        for line in (*asynchrony_notes(config, comprl), *variant_notes(config, comprl)):
            display.note(line)
        if comprl.experience and comprl.bank.url and not detection.on_existing_cluster(config.ray_kwargs.ray_init):
            with said_when_long(f"asking the bank's server {comprl.bank.url}", display.note):
                asyncio.run(check_server(comprl.bank))  # the manager finds out only when Ray has started
        with said_when_long(describe_ray_start(config), display.note):
            start_ray(config)
            check_transfer_queue()
            resources = ray.cluster_resources()
            if (exposed := [name for name, _ in worker_secrets(config)]) and not session_is_private():
                where = "in Ray's logs, which other users can read (docs/security.md#secrets)"
                display.note(f"ray_kwargs.ray_init.runtime_env.env_vars: {', '.join(exposed)} can be read {where}")
        check_cluster_slots(config, resources)
    except (ConfigError, StoreError, RuntimeError, AssertionError, ValueError, HydraException) as error:
        if is_verbose():
            traceback.print_exc()
        with uninterrupted():
            end_ray()
        display.fail(*(str(error).splitlines() if isinstance(error, ConfigError) else [str(error) or one_line(error)]))
        return None
    except BaseException:  # a signal, for example, while Ray starts
        with uninterrupted():
            end_ray()
        raise
    return comprl


def _train(config: Any, comprl: Any, display: Any) -> int:
    import transfer_queue as tq

    from verl_comprl.config.saved import save_config
    from verl_comprl.experience import EmbedderUnavailable, SnapshotError, StoreError
    from verl_comprl.extractor.endpoint import EndpointError
    from verl_comprl.platform.ray_session import close_transfer_queue, end_ray
    from verl_comprl.trainer.checkpoint.reading import UnreadableCheckpoint
    from verl_comprl.trainer.placement import PlacementError
    from verl_comprl.trainer.stopping import RunInterrupted
    from verl_comprl.trainer.watchdog.ending import RunHung
    from verl_comprl.trainer.watchdog.liveness import ProcessLost

    folder = Path(config.trainer.default_local_dir)
    os.environ.setdefault("TENSORBOARD_DIR", str(folder / "tensorboard"))
    fraction = comprl.guided_fraction if comprl.experience else None
    own_queue = False
    try:
        training = Training(config)
        with training.watched(display):
            with doing("start of TransferQueue"):
                # The experience manager loads its libraries and the embedder while TransferQueue starts.
                training.trainer.prepare()
                tq.init(queue_settings(config))
                check_transfer_queue()  # a run that started at the same moment may have made it
            own_queue = True
            # The folder may belong to a run that is still going, which the trainer notices when it locks the folder.
            training.run(display, guided_fraction=fraction, on_start=lambda steps: save_config(config, folder, steps))
    except RunInterrupted as interrupted:
        display.close()
        display.note(str(interrupted))
        return INTERRUPTED
    except (
        *(ConfigError, FileNotFoundError, UnreadableCheckpoint, PlacementError),
        *(StoreError, SnapshotError, EmbedderUnavailable, EndpointError),
    ) as error:
        print(traceback.format_exc())  # to the log
        # What a Ray actor raised arrives as an exception of its own type whose text is the whole remote traceback.
        display.fail(str(getattr(error, "cause", None) or error))
        return 2
    except (RunHung, ProcessLost) as error:
        print(traceback.format_exc())  # to the log: where it stood
        display.fail(str(error))
        return 1
    except KeyboardInterrupt:
        display.fail(_NOT_SAVED)
        return INTERRUPTED
    finally:
        with uninterrupted():
            if own_queue:  # it ends whichever this process has joined
                close_transfer_queue()
            end_ray()
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Compose the config from ``arguments`` (Hydra overrides) and run."""
    given = sys.argv[1:] if arguments is None else arguments
    if {"-h", "--help"} & set(given):
        print(_HELP, end="")
        return 0
    if mistakes := unknown_options(_options_first(given)) + unknown_arms(given) + unknown_overrides(given):
        print("\n".join(f"error: {mistake}" for mistake in mistakes))
        return 2
    if (nodes := node_count(os.environ)) > 1:
        print(f"error: torchrun has started this on {nodes} nodes; use -m verl_comprl.launch instead (docs/launch.md)")
        return 2
    interrupt_on_signals()
    try:
        if not prepare_environment(cluster=_goes_to_cluster(given)):
            return 0
        installed_verl()
        return _compose_and_run(given)
    except IncompatibleVerlError as error:
        print(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        print("error: interrupted before the run began")
        return INTERRUPTED


def _goes_to_cluster(overrides: list[str]) -> bool:
    address = None
    for override in overrides:
        key, _, value = override.partition("=")
        if key.lstrip("+") == "ray_kwargs.ray_init.address":
            address = None if value == "null" else value.strip("'\"")
    return detection.on_existing_cluster({"address": address})


def _compose_and_run(given: list[str]) -> int:
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    code = 0

    @hydra.main(version_base=None, config_path="config", config_name="comprl_trainer")
    def entry(config: Any) -> None:
        nonlocal code
        code = run(config)

    named = {argument.partition("=")[0] for argument in given}
    defaults = [default for default in _HYDRA_DEFAULTS if default.partition("=")[0] not in named]
    sys.argv = [sys.argv[0], *_options_first(given), *defaults]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # otherwise Hydra prints its errors itself, in many lines
    try:
        entry()
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        import_verl()  # raises why Hydra cannot find verl's settings, which it does not say
        print(f"error: {composing_mistake(error)}")
        return 2
    return code


def _options_first(given: list[str]) -> list[str]:
    """Return Hydra's options before the overrides: Hydra takes overrides in one piece only."""
    overrides = [argument for argument in given if "=" in argument and not argument.startswith("-")]
    overrides += [argument for argument in given if argument.startswith("~") and "=" not in argument]
    return [*(argument for argument in given if argument not in overrides), *overrides]


if __name__ == "__main__":
    sys.exit(main())
