"""Checks of a run's settings, its folder and the device slots that it needs."""

import copy
from pathlib import Path
from typing import Any

from verl_comprl.cli.doctor.finding import Problem, Skipped
from verl_comprl.cli.doctor.setup import Setup
from verl_comprl.config.tree import ComprlConfig

REMEDY = "set KEY=VALUE as the message says; to see all settings: comprl train --cfg job with the same arguments"


def check_settings(setup: Setup) -> str:
    """Check the settings as the launcher does before anything starts: models, data and environments, too."""
    if not setup.given:
        raise Skipped("none given; add the arguments of comprl train to check what a run needs")
    if not setup.is_run:
        from verl_comprl.config.reading import comprl_config

        comprl_config(setup.config)
        return "those given are allowed"
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from verl_comprl.config.composing import one_line
    from verl_comprl.config.reading import ConfigError
    from verl_comprl.training import check_config

    config = copy.deepcopy(setup.config)
    try:
        comprl = check_config(config)
    except OmegaConfBaseException:
        raise  # a variable that is not set: the remedy is in the message
    except (ConfigError, AssertionError, ValueError) as error:
        raise Problem(str(error), REMEDY) from error
    except HydraException as error:  # what verl's own checks refuse; the reason is on its second line
        raise Problem(one_line(error), REMEDY) from error
    setup.checked = config
    if absent := _absent_models(config, comprl):
        shown = " and ".join(f"{key}={model}" for key, model in absent.items())
        raise Problem(
            f"allowed, with data and environments; not on this machine, so that the run loads it from the hub: {shown}",
            "; ".join(f"hf download {model}" for model in dict.fromkeys(absent.values())) + ", or name a model folder",
            warning=True,
        )
    return "allowed, with models, data and environments"


def _absent_models(config: Any, comprl: ComprlConfig) -> dict[str, str]:
    """Return those models of the run, by setting, of which neither a folder nor the hub's cache has the config."""
    from verl_comprl.config.models import find_model_file

    subtrees = ("actor_rollout_ref", *(["extractor"] if comprl.has_extractor_engine else []))
    models = {f"{subtree}.model.path": config[subtree].model.path for subtree in subtrees}
    return {key: model for key, model in models.items() if find_model_file(model, "config.json") is None}


def check_run_folder(setup: Setup) -> str:
    """Check that no other run has the folder, whose lock is taken for a moment if there is one."""
    from verl_comprl.folder_lock import FolderInUse
    from verl_comprl.trainer.run_folder.lock import LOCK, lock_run

    if setup.checked is None:
        raise Skipped("not known: the settings of a run are not given, or are wrong")
    folder = Path(setup.checked.trainer.default_local_dir)
    if not (folder / LOCK).exists():
        return f"{folder} has no run yet"
    try:
        lock = lock_run(folder, tell=lambda line: None)
    except FolderInUse as error:
        raise Problem(str(error), "wait until that run has ended, or trainer.default_local_dir=OTHER_FOLDER") from error
    if lock is not None:
        lock.release()
    return f"no other run has {folder}"


def check_slots(setup: Setup) -> str:
    """Check that there are as many device slots as the run needs."""
    from verl_comprl.config.reading import ConfigError
    from verl_comprl.config.slots import needed_slots
    from verl_comprl.config.validation import check_cluster_slots
    from verl_comprl.platform.detection import cores, on_existing_cluster

    if setup.checked is None:
        raise Skipped("not known: the settings of a run are not given, or are wrong")
    config = setup.checked
    ray_init = config.ray_kwargs.ray_init
    resources = setup.resources
    if resources is None and on_existing_cluster(ray_init):
        raise Skipped("not known: the cluster does not answer")
    if resources is None:
        import torch

        slots = torch.accelerator.device_count() if ray_init.num_gpus is None else ray_init.num_gpus
        resources = {"GPU": slots, "CPU": cores() if ray_init.num_cpus is None else ray_init.num_cpus}
    try:
        check_cluster_slots(config, resources)
    except ConfigError as error:
        raise Problem(str(error), "trainer.n_gpus_per_node=… comprl.extractor.n_gpus_per_node=…") from error
    return f"{needed_slots(config)} of {resources.get('GPU', 0):g} device slots are needed"
