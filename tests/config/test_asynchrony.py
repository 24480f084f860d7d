"""Checks of the asynchronous trainers' settings: each mistake gets one line, before anything starts."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import DictConfig, OmegaConf

from verl_comprl.config.asynchrony import asynchrony_notes, settling_of
from verl_comprl.config.slots import needed_slots
from verl_comprl.config.validation import ConfigError, check_cluster_slots, validate
from verl_comprl.extractor.credit import Settling

COLOCATE = {"trainer.v1.trainer_mode": "comprl_colocate_async", "actor_rollout_ref.rollout.max_num_seqs": 256}
SEPARATE = {
    "trainer.v1.trainer_mode": "comprl_separate_async",
    "trainer.v1.separate_async.parameter_sync_step": 1,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 1,
    "actor_rollout_ref.rollout.nnodes": 1,
    "actor_rollout_ref.rollout.checkpoint_engine.backend": "comprl_gloo",
    "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module": "verl_comprl.platform.gloo_engine",
}


def changed(config: DictConfig, *changes: dict[str, Any]) -> DictConfig:
    for change in changes:
        for key, value in change.items():
            OmegaConf.update(config, key, value)
    return config


@pytest.mark.parametrize("mode", [COLOCATE, SEPARATE])
def test_good_settings_pass(config: DictConfig, mode: dict[str, Any]) -> None:
    validate(changed(config, mode))


@pytest.mark.parametrize(
    ("mode", "changes", "line"),
    [
        (COLOCATE, {"trainer.v1.sampler.max_off_policy_threshold": 0}, "threshold=0 .*null or a whole number of at"),
        (COLOCATE, {"trainer.v1.sampler.max_off_policy_strategy": "skip"}, "strategy='skip' .*one of wait, drop"),
        # 18 + 2 are not less than 20.
        (
            COLOCATE,
            {
                "trainer.v1.sampler.max_off_policy_threshold": 18,
                "trainer.v1.colocate_async.num_warmup_batches": 2,
            },
            "threshold=18 and .*num_warmup_batches=2 must be less than 20 together",
        ),
        # Two prompts of 8 rollouts, and three ahead, on four servers of two slots.
        (
            COLOCATE,
            {
                "actor_rollout_ref.rollout.max_num_seqs": 9,
                "data.train_batch_size": 2,
                "trainer.v1.colocate_async.num_warmup_batches": 1.5,
                "trainer.n_gpus_per_node": 8,
            },
            "actor_rollout_ref.rollout.max_num_seqs=9 is less than the 10 rollouts in flight per server",
        ),
        # 16 that distil, 4 that merge, and half of 16 rollouts ask.
        (
            COLOCATE,
            {"extractor.rollout.max_num_seqs": 27},
            "extractor.rollout.max_num_seqs=27 is less than the 28 requests",
        ),
        (
            SEPARATE,
            {"trainer.v1.separate_async.parameter_sync_step": 2},
            "data.train_batch_size=1 must be .*parameter_sync_step=2 times .*ppo_mini_batch_size=1",
        ),
        (SEPARATE, {"actor_rollout_ref.rollout.nnodes": 0}, "rollout.nnodes=0 is not allowed; .*slots of their own"),
        (
            SEPARATE,
            {"actor_rollout_ref.rollout.checkpoint_engine.backend": "naive"},
            "backend=naive cannot reach servers elsewhere; use nccl, or comprl_gloo with custom_backend_module=verl_c",
        ),
        (
            SEPARATE,
            {"actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module": None},
            "custom_backend_module=None must be verl_comprl.platform.gloo_engine with backend=comprl_gloo",
        ),
        (
            SEPARATE,
            {"reward.reward_model.enable": True, "reward.reward_model.enable_resource_pool": False},
            "reward.reward_model.enable_resource_pool=false cannot be used",
        ),
    ],
)
def test_mistakes(config: DictConfig, mode: dict[str, Any], changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        validate(changed(config, mode, changes))
    # The synchronous trainer reads none of these settings.
    OmegaConf.update(config, "trainer.v1.trainer_mode", "comprl_sync")
    if "ppo_mini_batch_size" not in line:
        validate(config)


def test_the_extractors_servers_pause_for_its_updates_with_the_synchronous_trainer_too(config: DictConfig) -> None:
    """16 that distil, 4 that merge, and half of 8 rollouts ask."""
    validate(changed(config, {"extractor.rollout.max_num_seqs": 24}))
    changed(config, {"extractor.rollout.max_num_seqs": 23})
    with pytest.raises(
        ConfigError,
        match=r"extractor\.rollout\.max_num_seqs=23 is less than the 24 requests .*lower data.train_batch_size",
    ):
        validate(config)
    validate(changed(config, {"comprl.extractor.train": False}))


def test_the_actors_servers_have_room_for_the_extractors_calls_too(config: DictConfig) -> None:
    """Two batches of 8 rollouts on four servers; with the actor as the extractor also 16 that distil, 4 that merge."""
    changed(config, COLOCATE, {"actor_rollout_ref.rollout.max_num_seqs": 4, "trainer.n_gpus_per_node": 8})
    validate(config)
    changed(config, {"comprl.extractor.backend": "actor", "comprl.extractor.train": False})
    with pytest.raises(ConfigError, match=r"max_num_seqs=4 is less than the 9 requests .*distillation_workers"):
        validate(config)
    validate(changed(config, {"actor_rollout_ref.rollout.max_num_seqs": 9}))


@pytest.mark.parametrize("arm", [{}, {"comprl.experience": False, "comprl.self_distillation.source": "free"}])
def test_self_distillation_needs_a_sync_after_every_update(config: DictConfig, arm: dict[str, Any]) -> None:
    changed(config, SEPARATE, {"comprl.self_distillation.weight": 0.1}, arm)
    validate(config)
    changed(config, {"trainer.v1.separate_async.parameter_sync_step": 2, "data.train_batch_size": 2})
    with pytest.raises(ConfigError, match=r"self_distillation.weight=0.1 cannot be combined with .*sync_step=2"):
        validate(config)


def test_several_tasks_must_wait_for_slow_ones(config: DictConfig, tmp_path: Path) -> None:
    file = tmp_path / "two.parquet"
    row = {"extra_info": {"environment": "minihack", "environment_options": '{"variant": "room"}'}}
    pq.write_table(pa.Table.from_pylist([row | {"data_source": name} for name in ("shop", "room")]), file)
    changed(config, COLOCATE, {"data.train_files": [str(file)]})
    with pytest.raises(ConfigError, match=r"strategy=drop replaces slow tasks .*2 tasks \(room, shop\); use wait"):
        validate(config)
    for allowed in ({"strategy": "wait", "threshold": 8}, {"strategy": "drop", "threshold": None}):
        validate(changed(config, {f"trainer.v1.sampler.max_off_policy_{key}": value for key, value in allowed.items()}))


def test_separate_servers_need_slots_of_their_own(config: DictConfig) -> None:
    changed(config, {"trainer.n_gpus_per_node": 2, "comprl.extractor.n_gpus_per_node": 1})
    assert needed_slots(config) == 3
    changed(config, SEPARATE, {"actor_rollout_ref.rollout.nnodes": 2, "actor_rollout_ref.rollout.n_gpus_per_node": 3})
    assert needed_slots(config) == 9
    # As verl's trainer sees the config of a run that has begun.
    changed(config, {"trainer.v1.trainer_mode": "separate_async"})
    assert needed_slots(config) == 9
    with pytest.raises(
        ConfigError, match=r"Ray has 8 device slots .* but 9 are needed: 2 for the actor .* 1 for .*, and 6 for servers"
    ):
        check_cluster_slots(config, {"GPU": 8.0, "CPU": 100.0})
    check_cluster_slots(config, {"GPU": 9.0, "CPU": 100.0})


def test_how_long_relative_rewards_wait(config: DictConfig) -> None:
    comprl = validate(config)
    assert settling_of(config, comprl) == Settling(rollouts=4, steps=2)  # half of 8 rollouts
    changed(config, COLOCATE, {"trainer.v1.sampler.max_off_policy_threshold": 4})
    changed(config, {"trainer.v1.colocate_async.num_warmup_batches": 1.5})
    assert settling_of(config, comprl) == Settling(rollouts=4, steps=8)  # 4 + 2 + 2
    changed(config, {"trainer.v1.sampler.max_off_policy_threshold": None})
    assert settling_of(config, comprl).steps == 20


def test_without_a_threshold_outcomes_of_long_episodes_are_noted_to_be_lost(config: DictConfig) -> None:
    changed(config, COLOCATE)
    assert list(asynchrony_notes(config, validate(config))) == []
    changed(config, {"trainer.v1.sampler.max_off_policy_threshold": None})
    (note,) = asynchrony_notes(config, validate(config))
    assert note.startswith("trainer.v1.sampler.max_off_policy_threshold=null: outcomes of episodes")
    changed(config, {"trainer.v1.trainer_mode": "comprl_sync"})
    assert list(asynchrony_notes(config, validate(config))) == []
