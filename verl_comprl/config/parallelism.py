"""Checks that models, batches and sequences can be divided over the GPUs, which verl asserts after minutes at best."""

import math
from collections.abc import Iterator

from omegaconf import DictConfig

from verl_comprl.config.models import read_model_file
from verl_comprl.config.slots import (
    actor_servers,
    extractor_owner,
    extractor_servers,
    extractor_slots,
    replica_slots,
    training_ranks,
)
from verl_comprl.config.tree import ComprlConfig

ENGINES = {"actor_rollout_ref": ("fsdp", "fsdp2"), "extractor": ("fsdp2",)}
"""verl's training engines with which the trainers work (``actor.strategy``). After an update that has failed, which is
tried again for the extractor only, FSDP1 can do nothing more, not even save."""


def undividable(config: DictConfig, comprl: ComprlConfig) -> Iterator[str]:
    """Yield one line per mistake.

    Args:
        config: The run's config.
        comprl: Our part of it, typed.
    """
    actor = config.trainer.nnodes * config.trainer.n_gpus_per_node
    yield from _servers(config, "actor_rollout_ref", actor_servers(config))
    yield from _ranks(config, "actor_rollout_ref", actor, "trainer.nnodes * trainer.n_gpus_per_node")
    yield from _heads(config, "actor_rollout_ref")
    yield from _mini_batch(config, actor)
    lengths = config.data.max_prompt_length, config.data.max_response_length
    yield from _longest_sequence(config, "actor_rollout_ref", *lengths)
    if comprl.has_extractor_engine:
        gpus = math.prod(extractor_slots(config, comprl))
        owner = extractor_owner(comprl)
        named = f"{owner}.nnodes * {owner}.n_gpus_per_node"
        rollout = config.extractor.rollout
        yield from _servers(config, "extractor", extractor_servers(config, comprl))
        yield from _heads(config, "extractor")
        yield from _ranks(config, "extractor", gpus, named)
        yield from _longest_sequence(config, "extractor", rollout.prompt_length, rollout.response_length)


def other_engines(config: DictConfig, comprl: ComprlConfig) -> Iterator[str]:
    """Yield a line for each model whose engine is not supported; it lacks settings that other checks read."""
    for subtree in ("actor_rollout_ref", *(["extractor"] if comprl.has_extractor_engine else [])):
        if (strategy := config[subtree].actor.strategy) not in (known := ENGINES[subtree]):
            yield f"{subtree}.actor.strategy={strategy} is not supported; it must be one of {', '.join(known)}"


def _servers(config: DictConfig, subtree: str, pools: dict[str, int]) -> Iterator[str]:
    rollout = config[subtree].rollout
    size, tensor_data = replica_slots(rollout), rollout.tensor_model_parallel_size * rollout.data_parallel_size
    for named, gpus in pools.items():
        if gpus % size:
            yield (
                f"{subtree}.rollout.tensor_model_parallel_size * data_parallel_size * pipeline_model_parallel_size="
                f"{size} must divide the {gpus} device slots of its servers ({named})"
            )
    experts = rollout.expert_parallel_size
    if experts > 1 and experts != tensor_data:
        yield (
            f"{subtree}.rollout.expert_parallel_size={experts} must be 1 or tensor_model_parallel_size * "
            f"data_parallel_size={tensor_data}"
        )


def _ranks(config: DictConfig, subtree: str, gpus: int, named: str) -> Iterator[str]:
    size = config[subtree].actor.ulysses_sequence_parallel_size
    if gpus % size:
        yield f"{subtree}.actor.ulysses_sequence_parallel_size={size} must divide its {gpus} device slots ({named})"


def _heads(config: DictConfig, subtree: str) -> Iterator[str]:
    """Check attention heads, where the model's config is on this machine: each GPU has equally many of them."""
    path = config[subtree].model.get("path") or ""
    fields = read_model_file(path, "config.json")
    fields = {**fields, **(fields.get("text_config") or {})}
    heads = fields.get("num_attention_heads")
    shared = fields.get("num_key_value_heads") or heads
    sizes = {
        f"{subtree}.rollout.tensor_model_parallel_size": config[subtree].rollout.tensor_model_parallel_size,
        f"{subtree}.actor.ulysses_sequence_parallel_size": config[subtree].actor.ulysses_sequence_parallel_size,
    }
    for name, size in sizes.items():
        if heads and size > 0 and heads % size:
            yield f"{name}={size} must divide the {heads} attention heads of {path}"
        elif shared and size > 0 and shared % size and size % shared:  # a head is on several GPUs where they are more
            yield f"{name}={size} must divide the {shared} key-value heads of {path}, or be a multiple of them"


def _mini_batch(config: DictConfig, gpus: int) -> Iterator[str]:
    actor, group = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout.n
    ranks = training_ranks(config.actor_rollout_ref, gpus)
    if actor.ppo_mini_batch_size > config.data.train_batch_size:  # verl says so only without use_dynamic_bsz
        yield (
            f"actor_rollout_ref.actor.ppo_mini_batch_size={actor.ppo_mini_batch_size} must be at most "
            f"data.train_batch_size={config.data.train_batch_size}"
        )
    if ranks and actor.ppo_mini_batch_size * group % ranks:
        yield (
            f"actor_rollout_ref.actor.ppo_mini_batch_size={actor.ppo_mini_batch_size} prompts of "
            f"actor_rollout_ref.rollout.n={group} rollouts must be a multiple of the {ranks} ranks that share a batch "
            "(trainer.nnodes * trainer.n_gpus_per_node / actor_rollout_ref.actor.ulysses_sequence_parallel_size)"
        )


def _longest_sequence(config: DictConfig, subtree: str, prompt: int, response: int) -> Iterator[str]:
    """Check micro-batches that are filled up to a number of tokens."""
    actor, rollout = config[subtree].actor, config[subtree].rollout
    longest = min(prompt + response, rollout.max_model_len or prompt + response)
    limits = {"actor.ppo_max_token_len_per_gpu": (actor.use_dynamic_bsz, actor.ppo_max_token_len_per_gpu)}
    if subtree != "extractor":  # its old log-probs are the generator's
        used = rollout.log_prob_use_dynamic_bsz
        limits["rollout.log_prob_max_token_len_per_gpu"] = (used, rollout.log_prob_max_token_len_per_gpu)
    for name, (used, tokens) in limits.items():
        if used and tokens * actor.ulysses_sequence_parallel_size < longest:
            yield (
                f"{subtree}.{name}={tokens} is too small: a micro-batch must hold the longest sequence of {longest} "
                f"tokens; it must be at least {-(-longest // actor.ulysses_sequence_parallel_size)}"
            )
