"""Checks across settings before anything is started: one line per mistake, with value, allowed ones and remedy.

What a single setting may be is declared with it (``config.tree``) and checked when the settings are read.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

from omegaconf import DictConfig, OmegaConf

from verl_comprl.config.adapters import adapter_mistakes
from verl_comprl.config.arm_check import contradictions
from verl_comprl.config.asynchrony import asynchrony_mistakes
from verl_comprl.config.backends import frozen_back_end
from verl_comprl.config.extractor_updates import update_mistakes
from verl_comprl.config.groups import misplaced, verl_settings
from verl_comprl.config.models import read_model_file
from verl_comprl.config.parallelism import other_engines, undividable
from verl_comprl.config.paths import listed
from verl_comprl.config.placement import placement_mistakes, separate_adapter_mistakes
from verl_comprl.config.reading import ConfigError, read_settings
from verl_comprl.config.slots import (
    ACTOR_POOL,
    EXTRACTOR_POOL,
    extractor_slots,
    needed_slots,
    slot_groups,
    training_ranks,
)
from verl_comprl.config.tree import ComprlConfig
from verl_comprl.config.variants import variant_mistakes
from verl_comprl.experience.transfer.snapshot import HUB_PREFIX
from verl_comprl.names import TRAINERS
from verl_comprl.platform.detection import on_existing_cluster, uses_cpu

_RESUME_MODES = ("auto", "disable", "resume_path")


def validate(config: DictConfig) -> ComprlConfig:
    """Check our settings together, and verl's where they concern us.

    Returns:
        Our settings, typed.

    Raises:
        ConfigError: With one line per mistake.
    """
    plain: Any = OmegaConf.to_container(config)
    if found := list(misplaced(plain, verl_settings())):  # the other checks would fail at what is no group
        raise ConfigError("\n".join(found))
    comprl, mistakes = read_settings(config)
    if engines := [*other_engines(config, comprl)]:
        raise ConfigError("\n".join([*mistakes, *engines]))
    mistakes += [
        *contradictions(config),
        *_models(config, comprl.has_extractor_engine),  # first what has no default: the rest may follow from it
        *_data(config),
        *_trainer(config),
        *asynchrony_mistakes(config, comprl),
        *_loggers(config),
        *_optimizers(config, comprl.has_extractor_engine),
        *_weight_sync(config, comprl.has_extractor_engine),
        *undividable(config, comprl),
        *_micro_batches(config),
        *adapter_mistakes(config),
        *separate_adapter_mistakes(config),
        *variant_mistakes(config, comprl),
    ]
    if comprl.experience:
        mistakes += [*_halves(config, comprl), *_bank(comprl)]
        mistakes += frozen_back_end(config, comprl)
    if comprl.has_extractor_engine:
        mistakes += [*_extractor(config, comprl), *placement_mistakes(config, comprl)]
        mistakes += update_mistakes(config) if comprl.extractor.train else []
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return comprl


def check_cluster_slots(config: DictConfig, resources: Mapping[str, float]) -> None:
    """Check that the Ray cluster has a device slot for every worker; verl would wait forever without a word.

    Args:
        config: The run's config.
        resources: ``ray.cluster_resources()``.

    Raises:
        ConfigError: If there are too few.
    """
    groups = slot_groups(config)
    slots = needed_slots(config)
    more_gpus = "On the CPU, ray_kwargs.ray_init.num_gpus is the number of logical slots; null takes what is needed."
    more_cpus = "set ray_kwargs.ray_init.num_cpus"
    if on_existing_cluster(config.ray_kwargs.ray_init):
        more_gpus = (
            "Start more nodes, or on CPUs nodes with more slots: ray start --num-gpus, COMPRL_RAY_START in torchrun"
        )
        more_cpus = "start more nodes, or nodes with more slots: ray start --num-cpus, COMPRL_RAY_START in torchrun"
    available = int(resources.get("GPU", 0))
    if available < slots:
        actor = sum(group.slots for group in groups if group.name == ACTOR_POOL)
        extractor = sum(group.slots for group in groups if group.name == EXTRACTOR_POOL)
        others = slots - actor - extractor
        raise ConfigError(
            f"Ray has {available} device slots (GPU), but {slots} are needed: {actor} for the actor "
            f"(trainer.nnodes * trainer.n_gpus_per_node) and {extractor} for the extractor "
            "(comprl.extractor.nnodes * comprl.extractor.n_gpus_per_node)"
            + (f", and {others} for servers and models of their own. " if others else ". ")
            + more_gpus
        )
    # One CPU per device slot and process that may share it, one for each storage of the TransferQueue, for its
    # controller and for the manager, and a free one: Ray places an actor only where one is, even if it keeps none.
    storages = config.transfer_queue.backend.SimpleStorage.num_data_storage_units
    needed = sum(group.slots * group.processes for group in groups) + storages + 3
    if resources.get("CPU", 0) < needed:
        raise ConfigError(
            f"Ray has {int(resources.get('CPU', 0))} CPU slots, but at least {needed} are needed; "
            f"{more_cpus} (they are logical: it may exceed the cores)"
        )


def _loggers(config: DictConfig) -> Iterator[str]:
    """Check the names of verl's metrics backends; verl does so only when both models have started."""
    from verl.utils.tracking import Tracking

    given = config.trainer.logger
    names = [given] if isinstance(given, str) else given
    if not OmegaConf.is_list(names) and not isinstance(names, list):
        yield f"trainer.logger={names!r} is not allowed; it must be a list of {', '.join(Tracking.supported_backend)}"
        return
    for name in names:
        if name not in Tracking.supported_backend:
            yield f"trainer.logger: {name!r} is unknown; allowed: {', '.join(Tracking.supported_backend)}"


def _trainer(config: DictConfig) -> Iterator[str]:
    mode = config.trainer.v1.trainer_mode
    if mode not in TRAINERS:
        yield f"trainer.v1.trainer_mode={mode!r} is not a trainer of verl-comprl; allowed: {', '.join(TRAINERS)}"
    if config.trainer.resume_mode not in _RESUME_MODES:
        yield f"trainer.resume_mode={config.trainer.resume_mode!r} is unknown; allowed: {', '.join(_RESUME_MODES)}"
    if config.trainer.resume_mode == "resume_path" and not config.trainer.resume_from_path:
        yield "trainer.resume_mode=resume_path needs trainer.resume_from_path, a checkpoint"
    for name in ("save_freq", "test_freq"):
        if type(config.trainer[name]) is not int:
            yield f"trainer.{name}={config.trainer[name]!r} is not allowed; it must be a number of steps, -1 for never"
    if config.trainer.val_only:
        yield from _evaluation(config.trainer)
    for model in ("actor_rollout_ref", "extractor"):
        if (OmegaConf.select(config, f"{model}.actor.checkpoint") or {}).get("async_save"):
            yield f"{model}.actor.checkpoint.async_save=true is not allowed: a checkpoint is verified before it counts"


def _evaluation(trainer: DictConfig) -> Iterator[str]:
    folder = Path(trainer.default_local_dir)
    has_run = any(folder.glob("global_step_*"))  # without a checkpoint, the next start puts everything aside anyway
    if has_run or trainer.resume_mode == "auto":
        yield (
            "trainer.val_only=true would move what the run has written and measure another bank than its own; use "
            "comprl evaluate, or trainer.resume_mode=disable to evaluate the untrained models in a new folder"
            + (f": trainer.default_local_dir={folder} has checkpoints of a run" if has_run else "")
        )


def _halves(config: DictConfig, comprl: ComprlConfig) -> Iterator[str]:
    group, fraction = config.actor_rollout_ref.rollout.n, comprl.guided_fraction
    guided = group * fraction
    if fraction == 0.5 and group % 2:
        yield f"actor_rollout_ref.rollout.n={group} is odd, but half of K rollouts are guided; use an even number"
    elif abs(guided - round(guided)) > 1e-9 or not round(guided) or (fraction < 1 and round(guided) == group):
        yield (
            f"comprl.guided_fraction={fraction} of actor_rollout_ref.rollout.n={group} rollouts is {guided:g}; "
            "both halves must be whole and non-empty"
        )
    evaluated = config.actor_rollout_ref.rollout.val_kwargs.n
    if evaluated < 2 or evaluated % 2:
        yield (
            f"actor_rollout_ref.rollout.val_kwargs.n={evaluated}: evaluation runs with and without experience; "
            "use an even number of at least 2"
        )


def _bank(comprl: ComprlConfig) -> Iterator[str]:
    initial = comprl.initial_bank
    if initial and not initial.startswith(HUB_PREFIX) and not (Path(initial) / "manifest.json").exists():
        yield f"comprl.initial_bank={initial} is no snapshot; make one with `comprl bank export`"
    if not initial and not comprl.extractor.distill:
        yield "comprl.initial_bank must name a snapshot, as comprl.extractor.distill=False leaves the bank empty"


def _models(config: DictConfig, extractor: bool) -> Iterator[str]:
    for subtree in ("actor_rollout_ref", *(["extractor"] if extractor else [])):
        path = config[subtree].model.get("path")
        if not path:
            yield f"{subtree}.model.path is missing; give a folder or the name of a model on the hub"
        elif _looks_local(path) and not (Path(path) / "config.json").exists():
            yield f"{subtree}.model.path={path} has no config.json; give a model folder or the name of one on the hub"


def _optimizers(config: DictConfig, extractor: bool) -> Iterator[str]:
    """Check that numbers of the optimizers are numbers; verl takes any text, and a worker fails when it has started."""
    from hydra.utils import get_class

    has_critic = config.critic.enable or config.algorithm.adv_estimator == "gae"
    used = {"actor_rollout_ref.actor": True, "extractor.actor": extractor, "critic": has_critic}
    for name in (name for name, is_used in used.items() if is_used):
        settings: Any = OmegaConf.to_container(OmegaConf.select(config, f"{name}.optim"), resolve=True)
        for key, kind in get_type_hints(get_class(settings["_target_"])).items():
            kinds = get_args(kind) or (kind,)  # of an optional number, or of a pair of them
            given = settings.get(key)
            if not {int, float} & {*kinds} or key not in settings or (given is None and type(None) in kinds):
                continue
            if not all(type(number) in (int, float) for number in (given if isinstance(given, list) else [given])):
                yield f"{name}.optim.{key}={given!r} is not allowed; it must be a number"


def _weight_sync(config: DictConfig, extractor: bool) -> Iterator[str]:
    """Check that a bucket of the weight sync holds a model's largest tensor; verl says so only when both have started.

    Only where a weight passes through host memory, on the CPU and with ``comprl_gloo``: otherwise verl sends a larger
    tensor by itself.
    """
    from verl.utils.torch_dtypes import PrecisionType

    for subtree in ("actor_rollout_ref", *(["extractor"] if extractor else [])):
        model, rollout = config[subtree].model, config[subtree].rollout
        if not uses_cpu() and rollout.checkpoint_engine.backend != "comprl_gloo":
            continue
        # Sent as the engine holds them, whatever the server's dtype.
        dtype = PrecisionType.to_dtype(config[subtree].actor.fsdp_config.get("model_dtype") or "fp32")
        bucket = rollout.checkpoint_engine.update_weights_bucket_megabytes
        needed = math.ceil(_largest_matrix(model.get("path") or "") * dtype.itemsize / 2**20)
        if bucket < needed:
            yield (
                f"{subtree}.rollout.checkpoint_engine.update_weights_bucket_megabytes={bucket} is too small for the "
                f"largest tensor of {model.path}; it must be at least {needed}"
            )


def _largest_matrix(model: str) -> int:
    """Return the elements of the larger of embedding and feed-forward matrix; 0 without a config on this machine."""
    fields = read_model_file(model, "config.json")
    fields = {**fields, **(fields.get("text_config") or {})}
    return fields.get("hidden_size", 0) * max(fields.get("vocab_size", 0), fields.get("intermediate_size", 0))


def _micro_batches(config: DictConfig) -> Iterator[str]:
    """Check that the actor's micro-batches fill its mini-batch; verl says so only after the first rollouts."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    ranks = training_ranks(config.actor_rollout_ref, config.trainer.nnodes * config.trainer.n_gpus_per_node)
    rows = actor.ppo_mini_batch_size * rollout.n // max(ranks, 1)
    sizes = {
        "actor.ppo_micro_batch_size_per_gpu": None if actor.use_dynamic_bsz else actor.ppo_micro_batch_size_per_gpu,
        "rollout.log_prob_micro_batch_size_per_gpu": (
            None if rollout.log_prob_use_dynamic_bsz else rollout.log_prob_micro_batch_size_per_gpu
        ),
    }
    for name, micro in sizes.items():
        if micro and rows % micro:
            yield (
                f"actor_rollout_ref.{name}={micro} must divide the {rows} rollouts of a mini-batch per device slot "
                "(actor_rollout_ref.actor.ppo_mini_batch_size * actor_rollout_ref.rollout.n), "
                "or set actor_rollout_ref.actor.use_dynamic_bsz=true"
            )


def _extractor(config: DictConfig, comprl: ComprlConfig) -> Iterator[str]:
    size, actor = comprl.extractor.batch_size, config.extractor.actor
    slots = math.prod(extractor_slots(config, comprl))
    ranks = max(1, training_ranks(config.extractor, slots))  # 0 if a sequence is split over more slots than there are
    micro = actor.ppo_micro_batch_size_per_gpu
    if size % ranks:
        yield (
            f"comprl.extractor.batch_size={size} must be a multiple of the {ranks} ranks that share a batch "
            f"({slots} device slots / extractor.actor.ulysses_sequence_parallel_size="
            f"{actor.ulysses_sequence_parallel_size})"
        )
    elif not actor.use_dynamic_bsz and micro and (size // ranks) % micro:
        yield (
            f"extractor.actor.ppo_micro_batch_size_per_gpu={micro} must divide the {size // ranks} samples per "
            "rank (comprl.extractor.batch_size), or set extractor.actor.use_dynamic_bsz=true"
        )


def _looks_local(path: str) -> bool:
    return path.startswith(("/", "./", "../", "~"))


def _data(config: DictConfig) -> Iterator[str]:
    for key in ("train_files", "val_files"):
        files = config.data.get(key)
        if not files:
            yield f"data.{key} is missing; make a file with `comprl data` (comprl data --help)"
        for file in listed(files):
            if not Path(file).exists():
                yield f"data.{key}: {file} does not exist; make one with `comprl data` (comprl data --help)"
            else:
                yield from _environments(f"data.{key}", file)
    yield from _enough_rows(config.data)


def _enough_rows(data: DictConfig) -> Iterator[str]:
    """Check that one batch can be drawn; verl would say that it has no data."""
    import pyarrow.parquet as pq
    from pyarrow.lib import ArrowException

    files = listed(data.train_files)
    if not files:
        yield f"data.train_batch_size={data.train_batch_size} must be at most the number of tasks in data.train_files"
    try:
        rows = sum(pq.read_metadata(file).num_rows for file in files)
    except (ArrowException, OSError):
        return  # which has been reported
    if files and rows < data.train_batch_size:
        yield (
            f"data.train_files have {rows} rows, but data.train_batch_size={data.train_batch_size}; make more with "
            "`comprl data --count` or use smaller batches"
        )


def _environments(key: str, file: str) -> Iterator[str]:
    """Make each environment that a dataset names once: a typo or a missing extra shows before any model loads."""
    import pyarrow.parquet as pq
    from pyarrow.lib import ArrowException

    from env_adapters import make

    try:
        table = pq.read_table(file)
    except (ArrowException, OSError) as error:
        yield f"{key}: {file} cannot be read as parquet ({error}); make one with `comprl data`"
        return
    column = table.column("extra_info").to_pylist() if "extra_info" in table.column_names else [None]
    rows: list[dict[str, Any]] = [row or {} for row in column]
    for name, options in sorted({(row.get("environment"), row.get("environment_options")) for row in rows}, key=str):
        if not name or options is None:
            yield (
                f"{key}: {file} has rows without extra_info.environment and extra_info.environment_options; "
                "make it with `comprl data`"
            )
            continue
        try:
            make(name, **json.loads(options)).close()
        except Exception as error:  # whatever an environment of a user's raises
            kind = "" if isinstance(error, ValueError | TypeError | ImportError) else f"{type(error).__name__}: "
            yield f"{key}: {file}: {kind}{error}"
