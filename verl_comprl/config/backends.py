"""Checks of what answers the extractor's calls (``comprl.extractor.backend``) if it is no model of its own."""

import os
from collections.abc import Iterator

from omegaconf import DictConfig

from verl_comprl.config.models import read_model_file
from verl_comprl.config.tree import ComprlConfig


def frozen_back_end(config: DictConfig, comprl: ComprlConfig) -> Iterator[str]:
    """Yield a line for each setting with which an endpoint, or the actor, cannot be the extractor."""
    backend = comprl.extractor.backend
    if backend == "own":
        return
    if comprl.extractor.train:
        yield (
            f"comprl.extractor.train=true needs comprl.extractor.backend=own, but it is {backend}, which cannot be "
            "trained; choose arm=static_online or arm=offline"
        )
    yield from _endpoint(comprl) if backend == "endpoint" else _actor(config)


def _endpoint(comprl: ComprlConfig) -> Iterator[str]:
    name, settings = "comprl.extractor.endpoint", comprl.extractor.endpoint
    if not settings.url:
        yield f"{name}.url is missing; give the address up to and with the version, such as http://127.0.0.1:8000/v1"
    if not settings.model:
        yield f"{name}.model is missing; give the endpoint's name of its model"
    if settings.key_variable and not os.environ.get(settings.key_variable):
        yield (
            f"{name}.key_variable={settings.key_variable}, but there is no such environment variable; export the "
            f"endpoint's key in it, or set {name}.key_variable= for an endpoint without a key"
        )


def _actor(config: DictConfig) -> Iterator[str]:
    """Check that the actor's servers take the longest call, and are there for it."""
    model, server, calls = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout, config.extractor.rollout
    limit = server.max_model_len or read_model_file(model.path or "", "config.json").get("max_position_embeddings")
    if limit and calls.prompt_length + calls.response_length > limit:
        yield (
            f"extractor.rollout.prompt_length={calls.prompt_length} + extractor.rollout.response_length="
            f"{calls.response_length} are more than the {limit} tokens of the actor's server "
            "(actor_rollout_ref.rollout.max_model_len), which is the extractor with comprl.extractor.backend=actor; "
            "set smaller ones"
        )
    reward = config.reward.reward_model
    if reward.enable and not reward.enable_resource_pool:
        # verl makes room for it in every evaluation, by putting servers to sleep that it takes for idle.
        yield (
            "reward.reward_model.enable_resource_pool=false cannot be combined with comprl.extractor.backend=actor: "
            "evaluations put the actor's servers to sleep for that model while they answer the extractor's calls; set "
            "it to true, which gives the model device slots of its own, or use another back end"
        )
