"""Checks of a composed config before anything is started: one line per mistake, with value, allowed ones and remedy."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

from omegaconf import DictConfig

from env_adapters.host.host import Isolation
from verl_comprl.experience import BankConfig
from verl_comprl.experience.transfer.snapshot import HUB_PREFIX
from verl_comprl.extractor.queue import QueueConfig
from verl_comprl.names import ADVANTAGE_ESTIMATOR, TRAINERS

UTILITIES = ("outcome", "relative")


class ConfigError(ValueError):
    """The configuration cannot work; the message says what to change."""


def validate(config: DictConfig) -> None:
    """Check our part of the config and what it asks of verl's.

    Raises:
        ConfigError: With one line per mistake.
    """
    mistakes = [*_trainer(config), *_models(config), *_micro_batches(config), *_data(config)]
    mistakes += _hosting(config.comprl.environments)
    if config.comprl.experience:
        mistakes += [*_halves(config), *_comprl(config.comprl), *_variants(config), *_extractor(config)]
    if mistakes:
        raise ConfigError("\n".join(mistakes))


def device_slots(config: DictConfig) -> tuple[int, int]:
    """Return how many device slots actor and extractor need."""
    ours = config.comprl.extractor
    extractor = ours.nnodes * ours.n_gpus_per_node if config.comprl.experience else 0
    return config.trainer.nnodes * config.trainer.n_gpus_per_node, extractor


def check_slots(config: DictConfig, resources: Mapping[str, float]) -> None:
    """Check that the Ray cluster has a device slot for every worker; verl would wait forever without a word.

    Args:
        config: The run's config.
        resources: ``ray.cluster_resources()``.

    Raises:
        ConfigError: If there are too few.
    """
    actor, extractor = device_slots(config)
    available = int(resources.get("GPU", 0))
    if available < actor + extractor:
        raise ConfigError(
            f"Ray has {available} device slots (GPU), but {actor + extractor} are needed: {actor} for the actor "
            f"(trainer.nnodes * trainer.n_gpus_per_node) and {extractor} for the extractor "
            "(comprl.extractor.nnodes * comprl.extractor.n_gpus_per_node). "
            "On the CPU, ray_kwargs.ray_init.num_gpus is the number of logical slots; null takes what is needed."
        )
    # verl reserves one CPU per device slot and colocated role; the servers and the manager take their own.
    needed = 3 * (actor + extractor) + 4
    if resources.get("CPU", 0) < needed:
        raise ConfigError(
            f"Ray has {int(resources.get('CPU', 0))} CPU slots, but at least {needed} are needed; "
            "set ray_kwargs.ray_init.num_cpus (they are logical: it may exceed the cores)"
        )


def _trainer(config: DictConfig) -> Iterator[str]:
    mode = config.trainer.v1.trainer_mode
    if mode not in TRAINERS:
        yield f"trainer.v1.trainer_mode={mode!r} is not a trainer of verl-comprl; allowed: {', '.join(TRAINERS)}"


def _halves(config: DictConfig) -> Iterator[str]:
    group, fraction = config.actor_rollout_ref.rollout.n, config.comprl.guided_fraction
    if not _is_number(fraction) or not 0 < fraction <= 1:
        yield (
            f"comprl.guided_fraction={fraction} is no share of the rollouts; allowed: above 0, up to 1 "
            "(nobody guided is arm=baseline)"
        )
        return
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


def _comprl(comprl: DictConfig) -> Iterator[str]:
    positive = {
        "max_turn_tokens": comprl.max_turn_tokens,
        "poll_interval": comprl.poll_interval,
        "search_and_ask.timeout": comprl.search_and_ask.timeout,
        "actor_critic.max_tokens": comprl.actor_critic.max_tokens,
        "actor_critic.timeout": comprl.actor_critic.timeout,
        "self_distillation.every": comprl.self_distillation.every,
        "embedder.batch_size": comprl.embedder.batch_size,
        "embedder.timeout": comprl.embedder.timeout,
        "extractor.batch_size": comprl.extractor.batch_size,
        "extractor.max_operations": comprl.extractor.max_operations,
        "extractor.distillation_workers": comprl.extractor.distillation_workers,
        "extractor.nnodes": comprl.extractor.nnodes,
        "extractor.n_gpus_per_node": comprl.extractor.n_gpus_per_node,
        "merge.chunk": comprl.merge.chunk,
        "merge.workers": comprl.merge.workers,
    }
    for name, value in positive.items():
        if not _is_number(value):
            yield f"comprl.{name}={value!r} must be a number"
        elif value <= 0:
            yield f"comprl.{name}={value} must be greater than 0"
    not_negative = {
        "warmup_steps": comprl.warmup_steps,
        "drain_timeout": comprl.drain_timeout,
        "search_and_ask.max_calls": comprl.search_and_ask.max_calls,
        "self_distillation.weight": comprl.self_distillation.weight,
        "extractor.alpha": comprl.extractor.alpha,
        "extractor.cooldown": comprl.extractor.cooldown,
        "merge.every": comprl.merge.every,
    }
    for name, value in not_negative.items():
        if not _is_number(value):
            yield f"comprl.{name}={value!r} must be a number"
        elif value < 0:
            yield f"comprl.{name}={value} must not be negative"
    staleness = comprl.extractor.max_staleness
    if staleness is not None and (not _is_number(staleness) or staleness < 0):
        yield f"comprl.extractor.max_staleness={staleness!r} must be null or a number that is not negative"
    if not _is_number(comprl.extractor.format_failure_reward):
        yield f"comprl.extractor.format_failure_reward={comprl.extractor.format_failure_reward!r} must be a number"
    initial = comprl.initial_bank
    if initial and not initial.startswith(HUB_PREFIX) and not (Path(initial) / "manifest.json").exists():
        yield f"comprl.initial_bank={initial} is no snapshot; make one with `comprl bank export`"
    if not initial and not comprl.extractor.distill:
        yield "comprl.initial_bank must name a snapshot, as comprl.extractor.distill=False leaves the bank empty"
    yield from _settings("bank", BankConfig, comprl.bank)
    yield from _settings("queue", QueueConfig, comprl.queue)


def _variants(config: DictConfig) -> Iterator[str]:
    """Check what is off by default and what it cannot be combined with."""
    comprl = config.comprl
    if not _is_number(comprl.exploration) or not 0 <= comprl.exploration <= 1:
        yield f"comprl.exploration={comprl.exploration!r} is no share of the guided episodes; allowed: 0 to 1"
    if comprl.extractor.utility not in UTILITIES:
        yield f"comprl.extractor.utility={comprl.extractor.utility!r} is unknown; allowed: {', '.join(UTILITIES)}"
    elif comprl.extractor.utility == "relative" and comprl.guided_fraction == 1:
        yield "comprl.extractor.utility=relative compares with the free half, but comprl.guided_fraction=1 has none"
    if comprl.actor_critic.train and not comprl.actor_critic.enabled:
        yield "comprl.actor_critic.train=true needs comprl.actor_critic.enabled=true"
    several = {
        "comprl.actor_critic.train=true": comprl.actor_critic.train,
        "comprl.self_distillation.weight": _is_number(comprl.self_distillation.weight)
        and comprl.self_distillation.weight > 0,
    }
    for name in (name for name, used in several.items() if used):
        if config.algorithm.adv_estimator != ADVANTAGE_ESTIMATOR:
            yield (
                f"{name} needs algorithm.adv_estimator={ADVANTAGE_ESTIMATOR}, which tells the outputs of a rollout "
                f"apart; it is {config.algorithm.adv_estimator}"
            )
    correction = config.algorithm.get("rollout_correction") or {}
    wrong = [key for key in ("rollout_is", "rollout_rs", "bypass_mode") if correction.get(key)]
    if several["comprl.self_distillation.weight"] and wrong:
        yield (
            f"comprl.self_distillation cannot be combined with algorithm.rollout_correction.{wrong[0]}: the server's "
            "log-probs of a distilled episode are those with experience"
        )


def _settings(group: str, settings: type, given: DictConfig) -> Iterator[str]:
    """Make the settings of a part of the manager, which check themselves."""
    kinds = get_type_hints(settings)
    values = {str(name): value for name, value in given.items()}
    for name in sorted(values.keys() - kinds.keys()):
        yield f"comprl.{group}.{name} is unknown; allowed: {', '.join(kinds)}"
    wrong = [name for name, value in values.items() if kinds.get(name) in (int, float) and not _is_number(value)]
    for name in wrong:
        yield f"comprl.{group}.{name}={values[name]!r} must be a number"
    if not wrong and values.keys() <= kinds.keys():
        try:
            settings(**values)
        except ValueError as error:
            yield str(error)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _models(config: DictConfig) -> Iterator[str]:
    for subtree in ("actor_rollout_ref", *(["extractor"] if config.comprl.experience else [])):
        path = config[subtree].model.get("path")
        if not path:
            yield f"{subtree}.model.path is missing; give a folder or the name of a model on the hub"
        elif _looks_local(path) and not (Path(os.path.expanduser(path)) / "config.json").exists():
            yield f"{subtree}.model.path={path} has no config.json; give a model folder or the name of one on the hub"


def _micro_batches(config: DictConfig) -> Iterator[str]:
    """Check that the actor's micro-batches fill its mini-batch; verl says so only after the first rollouts."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node // actor.ulysses_sequence_parallel_size
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


def _extractor(config: DictConfig) -> Iterator[str]:
    extractor = config.comprl.extractor
    ranks = extractor.nnodes * extractor.n_gpus_per_node
    micro = config.extractor.actor.ppo_micro_batch_size_per_gpu
    if all(_is_number(value) and value > 0 for value in (ranks, extractor.batch_size)):
        if extractor.batch_size % ranks:
            yield f"comprl.extractor.batch_size={extractor.batch_size} must be a multiple of its {ranks} device slots"
        elif not config.extractor.actor.use_dynamic_bsz and micro and (extractor.batch_size // ranks) % micro:
            yield (
                f"extractor.actor.ppo_micro_batch_size_per_gpu={micro} must divide the {extractor.batch_size // ranks} "
                "samples per device slot (comprl.extractor.batch_size), or set extractor.actor.use_dynamic_bsz=true"
            )


def _looks_local(path: str) -> bool:
    return path.startswith(("/", "./", "../", "~"))


def _hosting(environments: DictConfig) -> Iterator[str]:
    allowed = get_args(Isolation)
    if environments.isolation not in allowed:
        yield f"comprl.environments.isolation={environments.isolation!r} is unknown; allowed: {', '.join(allowed)}"
    for name in ("reset_timeout", "step_timeout", "episode_timeout", "max_idle"):
        if not _is_number(environments[name]) or environments[name] <= 0:
            yield f"comprl.environments.{name}={environments[name]!r} must be a number greater than 0"


def _data(config: DictConfig) -> Iterator[str]:
    for key in ("train_files", "val_files"):
        files = config.data.get(key)
        for file in [files] if isinstance(files, str) else list(files or []):
            if not Path(os.path.expanduser(file)).exists():
                yield f"data.{key}: {file} does not exist; make one with `comprl data` (comprl data --help)"
            else:
                yield from _environments(f"data.{key}", file)
    yield from _enough_rows(config.data)


def _enough_rows(data: DictConfig) -> Iterator[str]:
    """Check that one batch can be drawn; verl would say that it has no data."""
    import pyarrow.parquet as pq
    from pyarrow.lib import ArrowException

    files = [data.train_files] if isinstance(data.train_files, str) else list(data.train_files or [])
    try:
        rows = sum(pq.read_metadata(os.path.expanduser(file)).num_rows for file in files)
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
        table = pq.read_table(os.path.expanduser(file))
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
        except (ValueError, TypeError, ImportError) as error:
            yield f"{key}: {file}: {error}"
