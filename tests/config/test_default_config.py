"""The shipped config: complete, and the paper's values."""

from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from verl_comprl.experience import BankConfig
from verl_comprl.extractor.config import QueueConfig


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("actor_rollout_ref.rollout.n", 8),
        ("actor_rollout_ref.actor.clip_ratio", 0.2),
        ("actor_rollout_ref.actor.use_kl_loss", False),
        ("actor_rollout_ref.actor.entropy_coeff", 0),
        ("algorithm.adv_estimator", "comprl_subgroup"),
        ("algorithm.norm_adv_by_std_in_grpo", True),
        ("extractor.actor.policy_loss.loss_mode", "comprl_cispo"),
        ("extractor.actor.loss_agg_mode", "token-mean"),
        ("extractor.actor.clip_ratio_low", 0.1),
        ("extractor.actor.clip_ratio_high", 0.1),
        ("extractor.actor.ppo_mini_batch_size", 64),
        ("extractor.actor.optim.lr", 1e-6),
        ("extractor.rollout.temperature", 1.0),
        ("extractor.rollout.response_length", 8192),
        ("comprl.guided_fraction", 0.5),
        ("comprl.warmup_steps", 5),
        ("comprl.max_turn_tokens", 4096),
        ("comprl.search_and_ask.max_calls", 2),
        ("comprl.bank.capacity", 20_000),
        ("comprl.bank.retrieval_pool", 16),
        ("comprl.bank.diversity", 0.4),
        ("comprl.bank.recency_seconds", 300),
        ("comprl.bank.max_batch", 16),
        ("comprl.bank.max_wait_ms", 1.0),
        ("comprl.extractor.batch_size", 64),
        ("comprl.extractor.alpha", 0.5),
        ("comprl.extractor.cooldown", 1),
        ("comprl.extractor.max_operations", 3),
        ("comprl.merge.every", 5),
        ("comprl.merge.chunk", 5),
    ],
)
def test_the_defaults_are_the_papers(composed: DictConfig, key: str, value: Any) -> None:
    assert OmegaConf.select(composed, key) == value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("comprl.exploration", 0.1),
        ("comprl.extractor.list_nearest", 3),
        ("comprl.extractor.max_answer_share", 0.5),
        ("comprl.bank.asked_weight", 0.5),
        ("comprl.guide_per", "rollout"),
    ],
)
def test_where_the_paper_gives_no_number_the_default_is_ours(composed: DictConfig, key: str, value: Any) -> None:
    assert OmegaConf.select(composed, key) == value


def test_nothing_listens_that_nobody_asked_for(composed: DictConfig) -> None:
    assert composed.ray_kwargs.ray_init.include_dashboard is False


def test_every_interpolation_resolves_and_the_bank_takes_its_part(composed: DictConfig) -> None:
    OmegaConf.to_container(composed.extractor, resolve=True)
    bank = OmegaConf.to_container(composed.comprl.bank, resolve=True)
    queue = OmegaConf.to_container(composed.comprl.queue, resolve=True)
    assert isinstance(bank, dict) and isinstance(queue, dict)
    folder = composed.trainer.default_local_dir
    # What a bank or a queue does by itself is what it does in a run.
    expected = BankConfig(path=f"{folder}/bank", collection="verl_comprl-complementary_rl")
    assert BankConfig(**{str(key): value for key, value in bank.items()}) == expected
    assert QueueConfig(**{str(key): value for key, value in queue.items()}) == QueueConfig(folder=f"{folder}/queue")
