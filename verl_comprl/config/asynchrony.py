"""Settings of verl's asynchronous trainers: how far rollouts run ahead, and checks of what that needs.

Some of the checks are verl's own assertions, which it makes only when Ray and the processes have started.
"""

import math
from collections.abc import Iterator

from omegaconf import DictConfig

from verl_comprl.config.paths import listed
from verl_comprl.config.slots import actor_servers, extractor_servers, replica_slots
from verl_comprl.config.trainer_mode import COLOCATE, SEPARATE, base_mode
from verl_comprl.config.tree import ComprlConfig
from verl_comprl.config.weight_transfer import transfer_mistakes
from verl_comprl.extractor.buffer import KEEP_UNREFERENCED_STEPS
from verl_comprl.extractor.credit import Settling


def settling_of(config: DictConfig, comprl: ComprlConfig) -> Settling:
    """Return how long relative rewards wait: until no rollout of a prompt can still be running."""
    group = config.actor_rollout_ref.rollout.n
    free = max(1, group - round(group * comprl.guided_fraction))
    mode = _mode(config)
    if mode is None:
        return Settling(free)
    ahead, threshold = _batches_ahead(config, mode), config.trainer.v1.sampler.max_off_policy_threshold
    return Settling(free, KEEP_UNREFERENCED_STEPS if threshold is None else threshold + math.ceil(ahead) + 2)


def asynchrony_mistakes(config: DictConfig, comprl: ComprlConfig) -> Iterator[str]:
    """Yield a line for each setting that cannot work with the asynchronous trainer of the run, if it has one.

    The extractor's track is asynchronous with every trainer.
    """
    mode = _mode(config)
    yield from _room_for_extractor(config, comprl, mode)
    if mode is None:
        return
    sampler = config.trainer.v1.sampler
    threshold, strategy = sampler.max_off_policy_threshold, sampler.max_off_policy_strategy
    key = "trainer.v1.sampler.max_off_policy"
    if threshold is not None and (not isinstance(threshold, int) or threshold < 1):
        yield f"{key}_threshold={threshold!r} is not allowed; it must be null or a whole number of at least 1"
        return
    if strategy not in ("drop", "wait"):
        yield f"{key}_strategy={strategy!r} is not allowed; it must be one of wait, drop"
    elif strategy == "drop" and threshold is not None and len(tasks := _tasks(config)) > 1:
        yield (
            f"{key}_strategy=drop replaces slow tasks by fast ones, and data.train_files have {len(tasks)} tasks "
            f"({', '.join(tasks)}); use wait"
        )
    ahead = _batches_ahead(config, mode)
    if comprl.experience and threshold is not None and threshold + ahead >= KEEP_UNREFERENCED_STEPS:
        yield (
            f"{key}_threshold={threshold} and trainer.v1.{mode}.num_warmup_batches={ahead} must be less than "
            f"{KEEP_UNREFERENCED_STEPS} together: an episode of more steps outlives the record of an answer it used"
        )
    yield from _room_for_requests(config, comprl, mode)
    if mode == SEPARATE:
        yield from _separate(config, comprl)


def asynchrony_notes(config: DictConfig, comprl: ComprlConfig) -> Iterator[str]:
    """Yield a line for each setting that works with the run's asynchronous trainer, but perhaps not as expected."""
    mode = _mode(config)
    if mode is None:
        return
    if config.trainer.v1.sampler.max_off_policy_threshold is None and comprl.experience:
        yield (
            "trainer.v1.sampler.max_off_policy_threshold=null: outcomes of episodes that take more than "
            f"{KEEP_UNREFERENCED_STEPS} steps do not reward the answers they used"
        )


def _mode(config: DictConfig) -> str | None:
    """Return verl's name of the run's trainer if it is asynchronous."""
    mode = base_mode(config)
    return mode if mode in (COLOCATE, SEPARATE) else None


def _batches_ahead(config: DictConfig, mode: str) -> float:
    return config.trainer.v1[mode].num_warmup_batches


def _tasks(config: DictConfig) -> list[str]:
    """Return the tasks of the training data; none if a file cannot be read, which is reported elsewhere."""
    import pyarrow.parquet as pq
    from pyarrow.lib import ArrowException

    found: set[str] = set()
    for file in listed(config.data.train_files):
        try:
            table = pq.read_table(file, columns=["data_source"])
        except (ArrowException, OSError, KeyError):
            continue
        if "data_source" in table.column_names:
            found.update(map(str, table.column("data_source").to_pylist()))
    return sorted(found)


def _room_for_requests(config: DictConfig, comprl: ComprlConfig, mode: str) -> Iterator[str]:
    """Check that every request can run at once.

    A weight sync waits for each request without a first token, up to a minute, which one that queues does not get.
    """
    rollout = config.actor_rollout_ref.rollout
    *_, slots = actor_servers(config).values()
    in_flight = _rollouts_in_flight(config, mode)
    working = comprl.extractor.distillation_workers + comprl.merge.workers
    served_too = working if comprl.experience and comprl.extractor.backend == "actor" else 0
    needed = math.ceil((in_flight + served_too) / max(1, slots // replica_slots(rollout)))
    if rollout.max_num_seqs < needed:
        more = ", comprl.extractor.distillation_workers and comprl.merge.workers" if served_too else ""
        yield (
            f"actor_rollout_ref.rollout.max_num_seqs={rollout.max_num_seqs} is less than the {needed} "
            f"{'requests' if served_too else 'rollouts'} in flight per server ((1 + trainer.v1.{mode}."
            f"num_warmup_batches) * data.train_batch_size * actor_rollout_ref.rollout.n{more}); weight syncs would "
            "wait for those that queue"
        )


def _rollouts_in_flight(config: DictConfig, mode: str | None) -> int:
    batch = config.data.train_batch_size
    ahead = math.floor(_batches_ahead(config, mode) * batch) if mode else 0
    filtering = config.algorithm.get("filter_groups") or {}
    if not mode and filtering.get("enable"):  # of verl's synchronous replay buffer, which replaces filtered groups
        batch *= filtering.get("max_inflight_gen_batches") or 1
    return (batch + ahead) * config.actor_rollout_ref.rollout.n


def _room_for_extractor(config: DictConfig, comprl: ComprlConfig, mode: str | None) -> Iterator[str]:
    """Check the same of the extractor's servers, which pause for each of its updates."""
    if not (comprl.has_extractor_engine and comprl.extractor.train):
        return
    working = comprl.extractor.distillation_workers + comprl.merge.workers
    asking = 0
    if comprl.search_and_ask.max_calls:
        asking = round(_rollouts_in_flight(config, mode) * comprl.guided_fraction)
    (slots,) = extractor_servers(config, comprl).values()
    needed = math.ceil((working + asking) / max(1, slots // replica_slots(config.extractor.rollout)))
    if config.extractor.rollout.max_num_seqs < needed:
        yield (
            f"extractor.rollout.max_num_seqs={config.extractor.rollout.max_num_seqs} is less than the {needed} "
            "requests that a server may have at a time (comprl.extractor.distillation_workers, comprl.merge.workers "
            "and a question of each guided rollout); weight syncs would wait for those that queue; allow as many, or "
            "lower data.train_batch_size"
        )


def _separate(config: DictConfig, comprl: ComprlConfig) -> Iterator[str]:
    """Check what verl's ``separate_async`` asserts."""
    model, updates = config.actor_rollout_ref, config.trainer.v1.separate_async.parameter_sync_step
    batch, mini_batch = config.data.train_batch_size, model.actor.ppo_mini_batch_size
    if batch != updates * mini_batch:
        yield (
            f"data.train_batch_size={batch} must be trainer.v1.separate_async.parameter_sync_step={updates} times "
            f"actor_rollout_ref.actor.ppo_mini_batch_size={mini_batch}"
        )
    for name in ("nnodes", "n_gpus_per_node"):
        if model.rollout[name] < 1:
            yield (
                f"actor_rollout_ref.rollout.{name}={model.rollout[name]} is not allowed; it must be at least 1: the "
                "servers have device slots of their own"
            )
    yield from transfer_mistakes(config, "actor_rollout_ref")
    reward = config.reward.reward_model
    if reward.enable and not reward.enable_resource_pool:
        yield "reward.reward_model.enable_resource_pool=false cannot be used: the servers make no room for that model"
    if comprl.self_distillation.weight > 0 and updates > 1:
        yield (
            f"comprl.self_distillation.weight={comprl.self_distillation.weight} cannot be combined with "
            f"trainer.v1.separate_async.parameter_sync_step={updates}: its loss is right only where old and new policy "
            "are the same, in the first update after a sync; use parameter_sync_step=1"
        )
