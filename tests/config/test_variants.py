"""Combinations of what is off by default that would not do what they say."""

import re
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from verl_comprl.config.reading import comprl_config
from verl_comprl.config.validation import ConfigError, validate
from verl_comprl.config.variants import variant_notes


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"comprl.extractor.utility": "relative", "comprl.guided_fraction": 1.0},
            "utility=relative compares with the free half, but comprl.guided_fraction=1 has none",
        ),
        (
            {"comprl.self_distillation.weight": 0.1, "algorithm.adv_estimator": "grpo"},
            "comprl.self_distillation.weight needs algorithm.adv_estimator=comprl_subgroup.*it is grpo",
        ),
        (
            {
                "comprl.actor_critic.enabled": True,
                "comprl.actor_critic.train": True,
                "algorithm.adv_estimator": "grpo",
            },
            "comprl.actor_critic.train=true needs algorithm.adv_estimator=comprl_subgroup",
        ),
        (
            {"comprl.self_distillation.weight": 0.1, "algorithm.rollout_correction.rollout_is": "token"},
            "self_distillation cannot be combined with algorithm.rollout_correction.rollout_is",
        ),
        (
            {
                "comprl.experience": False,
                "comprl.self_distillation.weight": 2.0,
                "comprl.self_distillation.source": "free",
                "algorithm.adv_estimator": "grpo",
            },
            "comprl.self_distillation.weight needs algorithm.adv_estimator=comprl_subgroup.*it is grpo",
        ),
        (
            {
                "comprl.self_distillation.weight": 0.1,
                "data.train_batch_size": 2,
                "actor_rollout_ref.actor.ppo_mini_batch_size": 1,
            },
            "comprl.self_distillation.weight with 2 mini-batches .* needs actor_rollout_ref.actor.shuffle=true",
        ),
        (
            {
                "comprl.actor_critic.enabled": True,
                "comprl.actor_critic.train": True,
                "data.train_batch_size": 2,
                "actor_rollout_ref.actor.ppo_mini_batch_size": 1,
            },
            "comprl.actor_critic.train=true with 2 mini-batches .* needs actor_rollout_ref.actor.shuffle=true",
        ),
        (
            {"comprl.experience": False, "comprl.self_distillation.weight": 2.0},
            "comprl.self_distillation.source=guided needs comprl.experience=true: .*use source=free",
        ),
    ],
)
def test_variants_that_exclude_one_another(config: DictConfig, settings: dict[str, Any], line: str) -> None:
    for key, value in settings.items():
        OmegaConf.update(config, key, value, force_add=True)
    with pytest.raises(ConfigError) as caught:
        validate(config)
    (found,) = str(caught.value).splitlines()
    assert re.search(line, found), found


def test_a_shuffled_batch_may_have_several_mini_batches(config: DictConfig) -> None:
    config.data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size = 2, 1
    config.comprl.self_distillation.weight = 0.5
    config.actor_rollout_ref.actor.shuffle = True
    validate(config)


def test_a_watchdog_with_less_patience_than_an_episode_has_time_is_noted(config: DictConfig) -> None:
    assert list(variant_notes(config, comprl_config(config))) == []
    config.comprl.environments.episode_timeout = 7200
    (note,) = variant_notes(config, comprl_config(config))
    assert note.startswith("comprl.watchdog.end_after=3600 may end a run") and "7500 s" in note
    for settings in ({"end_after": 7200}, {"end_after": 0}, {"end_after": 3600, "after": 0}):
        config.comprl.watchdog.update(settings)
        assert list(variant_notes(config, comprl_config(config))) == []


def test_imitation_over_several_optimizer_steps_is_noted(config: DictConfig) -> None:
    config.data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size = 64, 32
    config.comprl.self_distillation.weight = 0.5
    comprl = comprl_config(config)
    (note,) = variant_notes(config, comprl)
    assert "comprl.self_distillation.weight=0.5 with 2 optimizer steps on a batch" in note
    no_ratio = {"loss_mode": "bypass_mode", "rollout_correction": {"loss_type": "reinforce", "rollout_is": None}}
    OmegaConf.update(config, "actor_rollout_ref.actor.policy_loss", no_ratio, force_add=True)
    (note,) = variant_notes(config, comprl)  # nothing is clipped, which is worse
    assert "loss_type=reinforce has no clip, with 2 optimizer steps on a batch" in note
    config.comprl.self_distillation.weight = 0
    assert list(variant_notes(config, comprl_config(config))) == [note]  # whatever else is on
    config.actor_rollout_ref.actor.policy_loss.loss_mode = "vanilla"
    assert len(list(variant_notes(config, comprl))) == 1
    config.actor_rollout_ref.actor.ppo_mini_batch_size = 64
    assert list(variant_notes(config, comprl)) == []
