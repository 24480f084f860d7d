"""The settings that engines fix when they start, which must be the same in all runs that share them."""

from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_comprl.config.reading import leaves
from verl_comprl.config.trainer_mode import is_separate

_ACTOR = (
    # The trainer reads these in every step.
    "ppo_mini_batch_size",
    "ppo_epochs",
    "shuffle",
    "data_loader_seed",
    "rollout_n",
    # EngineWorker.restart applies these: micro-batches, the optimizer, and what verl's losses read.
    "ppo_micro_batch_size_per_gpu",
    "ppo_max_token_len_per_gpu",
    "optim",
    "clip_ratio",
    "clip_ratio_low",
    "clip_ratio_high",
    "clip_ratio_c",
    "policy_loss",
    "loss_agg_mode",
    "loss_scale_factor",
    "entropy_coeff",
    "calculate_entropy",
    "tau_pos",
    "tau_neg",
    "kl_loss_coef",
    "kl_loss_type",
)
_ROLLOUT = (
    # Agent loops and trainer send these with every request, or use them themselves.
    "n",
    "temperature",
    "top_p",
    "top_k",
    "do_sample",
    "val_kwargs",
    "prompt_length",
    "response_length",
    "calculate_log_probs",
    "multi_turn",
    "agent",
    # Read when a server starts: its random numbers continue from run to run.
    "seed",
    # EngineWorker.restart applies these.
    "log_prob_micro_batch_size_per_gpu",
    "log_prob_max_token_len_per_gpu",
)
_FREE = {f"actor.{name}" for name in _ACTOR} | {f"rollout.{name}" for name in _ROLLOUT}
"""Settings of a model that each run may choose."""

_FIXED = (
    "trainer.nnodes",
    "trainer.n_gpus_per_node",
    "trainer.device",
    "algorithm.use_kl_in_reward",
    "reward",
    "distillation.enabled",
    "global_profiler",
    "transfer_queue",
)
_FIXED_WITH_EXTRACTOR = (
    "comprl.extractor.placement",
    "comprl.extractor.nnodes",
    "comprl.extractor.n_gpus_per_node",
    "comprl.extractor.node_resource",
)


def conflicts(config: DictConfig, reference: DictConfig, name: str) -> Iterator[str]:
    """Compare the config of a run with that of another.

    Args:
        config: A run's config.
        reference: The other's; with an engine for the extractor, if any run has one.
        name: Of the other run.

    Yields:
        A line for each setting that must be the same and is not, with both values.
    """
    subtrees = ["actor_rollout_ref", *_FIXED]
    if has_extractor_engine(config) and has_extractor_engine(reference):
        subtrees += ["extractor", *_FIXED_WITH_EXTRACTOR]
    if config.distillation.enabled:
        subtrees.append("distillation")
    ours, theirs = _fixed_settings(config, subtrees), _fixed_settings(reference, subtrees)
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key):
            yield f"{key}={ours.get(key)} is not the {theirs.get(key)} of run {name}, with which it is to share engines"


def has_extractor_engine(config: DictConfig) -> bool:
    """Return whether a run, whose settings need not be right, has a second model."""
    return bool(config.comprl.experience) and config.comprl.extractor.backend == "own"


def needs_own_engines(config: DictConfig) -> Iterator[str]:
    """Yield a line for each setting whose engines or servers cannot begin another run, with the reason."""
    from verl.trainer.ppo.utils import need_critic

    if is_separate(config):
        yield f"trainer.v1.trainer_mode={config.trainer.v1.trainer_mode}: servers of the actor have slots of their own"
    if need_critic(config):
        yield (
            f"algorithm.adv_estimator={config.algorithm.adv_estimator}, critic.enable={config.critic.enable}: "
            "a critic is a model that cannot begin again"
        )


def _fixed_settings(config: DictConfig, subtrees: list[str]) -> dict[str, Any]:
    uses_reference = config.actor_rollout_ref.actor.use_kl_loss or config.algorithm.use_kl_in_reward
    return {
        key: value
        for subtree in subtrees
        for key, value in leaves(subtree, _plain(OmegaConf.select(config, subtree)))
        if not _is_free(key, uses_reference=uses_reference)
    }


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _is_free(key: str, *, uses_reference: bool) -> bool:
    subtree, *parts = key.split(".")
    if subtree not in ("actor_rollout_ref", "extractor"):
        return False
    if parts[0] == "ref" and not uses_reference:
        return True
    return ".".join(parts[:2]) in _FREE
