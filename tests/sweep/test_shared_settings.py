"""Settings that the runs of a sweep share, and those that may differ."""

import copy
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from verl_comprl.sweep.shared_settings import conflicts, needs_own_engines

SEARCH = "hydra.searchpath=[pkg://verl.trainer.config]"
ARMS = ("all_guided", "baseline", "experience_only", "no_merge", "offline", "shared_baseline", "static_online")


@pytest.fixture(scope="module")
def configs() -> dict[str, DictConfig]:
    with initialize_config_module("verl_comprl.config", version_base=None):
        return {arm: compose("comprl_trainer", overrides=[SEARCH, f"arm={arm}"]) for arm in ("complementary", *ARMS)}


@pytest.fixture
def reference(configs: dict[str, DictConfig]) -> DictConfig:
    return configs["complementary"]


def changed(config: DictConfig, **values: Any) -> DictConfig:
    config = copy.deepcopy(config)
    for key, value in values.items():
        OmegaConf.update(config, key, value, force_add=True)
    return config


@pytest.mark.parametrize("arm", ARMS)
def test_all_arms_share_engines(configs: dict[str, DictConfig], reference: DictConfig, arm: str) -> None:
    assert list(conflicts(configs[arm], reference, "first")) == []


FREE: dict[str, Any] = {
    "data.train_batch_size": 12,
    "data.train_files": ["other.parquet"],
    "data.seed": 7,
    "data.max_prompt_length": 99,  # rollout.prompt_length is an interpolation of it
    "actor_rollout_ref.actor.ppo_mini_batch_size": 12,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 3,
    "actor_rollout_ref.actor.optim.lr": 0.5,
    "actor_rollout_ref.actor.clip_ratio_c": 9.0,
    "actor_rollout_ref.actor.policy_loss.loss_mode": "gspo",
    "actor_rollout_ref.rollout.n": 4,
    "actor_rollout_ref.rollout.temperature": 0.3,
    "actor_rollout_ref.rollout.val_kwargs.n": 6,
    "extractor.actor.optim.lr": 0.5,
    "extractor.rollout.top_p": 0.5,
    "comprl.extractor.batch_size": 8,
    "comprl.self_distillation.weight": 0.1,
    "trainer.total_training_steps": 3,
}


@pytest.mark.parametrize("key", FREE)
def test_settings_of_a_run(reference: DictConfig, key: str) -> None:
    assert list(conflicts(changed(reference, **{key: FREE[key]}), reference, "first")) == []


FIXED: dict[str, Any] = {
    "actor_rollout_ref.model.path": "other",
    "actor_rollout_ref.actor.fsdp_config.param_offload": True,
    "actor_rollout_ref.actor.strategy": "fsdp",
    "actor_rollout_ref.actor.use_kl_loss": True,
    "actor_rollout_ref.rollout.max_model_len": 77,
    "actor_rollout_ref.rollout.gpu_memory_utilization": 0.9,
    "extractor.rollout.max_num_seqs": 3,
    "comprl.extractor.n_gpus_per_node": 5,
    "trainer.n_gpus_per_node": 5,
    "transfer_queue.backend.SimpleStorage.num_data_storage_units": 5,
}


@pytest.mark.parametrize("key", FIXED)
def test_settings_of_the_engines(reference: DictConfig, key: str) -> None:
    expected, value = OmegaConf.select(reference, key), FIXED[key]
    found = list(conflicts(changed(reference, **{key: value}), reference, "first"))
    assert f"{key}={value} is not the {expected} of run first, with which it is to share engines" in found


def test_the_extractor_of_a_run_that_does_not_use_it_may_be_anything(configs: dict[str, DictConfig]) -> None:
    other = changed(configs["baseline"], **{"extractor.model.path": "other"})
    assert list(conflicts(other, configs["complementary"], "first")) == []


@pytest.mark.parametrize("backend", ["endpoint", "actor"])
def test_a_run_without_an_extractor_of_its_own_may_be_beside_one_with(reference: DictConfig, backend: str) -> None:
    other = changed(reference, **{"comprl.extractor.backend": backend, "extractor.model.path": "other"})
    assert list(conflicts(other, reference, "first")) == [] == list(conflicts(reference, other, "first"))
    different = conflicts(changed(other, **{"actor_rollout_ref.model.path": "other"}), reference, "first")
    assert next(different).startswith("actor_rollout_ref.model.path=other is not the")


def test_the_reference_model_counts_where_it_is_used(reference: DictConfig) -> None:
    key = "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu"
    assert list(conflicts(changed(reference, **{key: 3}), reference, "first")) == []
    with_reference = changed(reference, **{"actor_rollout_ref.actor.use_kl_loss": True})
    (found,) = conflicts(changed(with_reference, **{key: 3}), with_reference, "first")
    assert found.startswith(f"{key}=3 is not the None of run first")


def test_what_cannot_begin_again_needs_engines_of_its_own(reference: DictConfig) -> None:
    for mode in ("comprl_sync", "comprl_colocate_async"):
        assert list(needs_own_engines(changed(reference, **{"trainer.v1.trainer_mode": mode}))) == []
    separate = changed(reference, **{"trainer.v1.trainer_mode": "comprl_separate_async"})
    mode = "trainer.v1.trainer_mode=comprl_separate_async: servers of the actor have slots of their own"
    assert list(needs_own_engines(separate)) == [mode]
    critic = "algorithm.adv_estimator={}, critic.enable={}: a critic is a model that cannot begin again"
    gae = changed(separate, **{"algorithm.adv_estimator": "gae"})
    assert list(needs_own_engines(gae)) == [mode, critic.format("gae", None)]
    enabled = changed(reference, **{"critic.enable": True})
    assert list(needs_own_engines(enabled)) == [critic.format("comprl_subgroup", True)]
