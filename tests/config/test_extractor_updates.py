"""Start-up checks of ``extractor.actor``."""

from typing import Any

import pytest
from omegaconf import DictConfig
from refused import mistakes

from verl_comprl.config.validation import validate


@pytest.mark.parametrize(("name", "value"), [("use_kl_loss", True), ("entropy_coeff", 0.01), ("ppo_epochs", 2)])
def test_what_an_update_would_ignore_or_fail_at_is_refused(config: DictConfig, name: str, value: Any) -> None:
    config.extractor.actor[name] = value
    (found,) = mistakes(config)
    assert found.startswith(f"extractor.actor.{name}={value} is not allowed, as ")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"lr_scheduler_type": "cosine"}, "lr_scheduler_type=cosine"),
        ({"warmup_style": "cosine"}, "lr_scheduler_type=cosine"),
        ({"lr_warmup_steps_ratio": 0.1}, "lr_warmup_steps_ratio=0.1"),
    ],
)
def test_a_schedule_needs_the_number_of_updates(config: DictConfig, settings: dict[str, Any], named: str) -> None:
    config.extractor.actor.optim.update(settings)
    (found,) = mistakes(config)
    assert found.startswith(f"extractor.actor.optim.{named} needs extractor.actor.optim.total_training_steps")
    config.extractor.actor.optim.total_training_steps = 100
    validate(config)


def test_an_extractor_that_is_not_trained_has_no_schedule(config: DictConfig) -> None:
    """As in ``comprl evaluate`` of a run whose config has one."""
    config.extractor.actor.optim.lr_scheduler_type, config.extractor.actor.ppo_epochs = "cosine", 2
    config.comprl.arm, config.comprl.extractor.train = "static_online", False
    validate(config)


def test_steps_of_warm_up_need_no_length(config: DictConfig) -> None:
    config.extractor.actor.optim.update(lr_warmup_steps=10, lr_warmup_steps_ratio=0.1)
    validate(config)


def test_an_actors_schedule_has_a_length(config: DictConfig) -> None:
    config.actor_rollout_ref.actor.optim.update(lr_scheduler_type="cosine", lr_warmup_steps_ratio=0.1)
    config.actor_rollout_ref.actor.entropy_coeff = 0.01
    validate(config)


def test_without_verls_length_a_cosine_is_0_in_every_second_update() -> None:
    """Why it is refused: remove the check when this fails."""
    import torch
    from verl.utils.torch_functional import get_cosine_schedule_with_warmup

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=0, num_training_steps=-1)
    rates = []
    for _ in range(6):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert min(rates[1::2] + rates[::2]) == pytest.approx(0, abs=1e-6) and max(rates) == pytest.approx(1)
