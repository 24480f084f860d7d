"""Start-up checks of the extractor's placement."""

import re
from typing import Any

import pytest
from omegaconf import DictConfig
from refused import mistakes

from verl_comprl.config.validation import validate
from verl_comprl.trainer.extractor.runtime import extractor_view


def test_a_shared_extractor_needs_servers_that_pause_and_memory_for_both(
    config: DictConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verl_comprl.config.placement.uses_cpu", lambda: False)
    config.comprl.extractor.placement = "shared"
    for model, share in ((config.actor_rollout_ref, 0.6), (config.extractor, 0.4)):
        model.rollout.free_cache_engine = True
        model.rollout.gpu_memory_utilization = share
    assert any(re.search(r"take 1\.00 of a GPU's memory .*at most 0\.95", line) for line in mistakes(config))
    config.extractor.rollout.gpu_memory_utilization = 0.3
    config.extractor.rollout.free_cache_engine = False
    assert any("extractor.rollout.free_cache_engine=False" in line for line in mistakes(config))
    config.extractor.rollout.free_cache_engine = True
    validate(config)
    config.trainer.v1.trainer_mode = "comprl_separate_async"
    assert any("allowed: comprl_sync, comprl_colocate_async" in line for line in mistakes(config))


@pytest.fixture
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as sending weights is concerned."""
    monkeypatch.setattr("verl_comprl.config.weight_transfer.uses_cpu", lambda: False)


def send_over_nccl(config: DictConfig, **options: Any) -> None:
    config.extractor.rollout.checkpoint_engine.update(backend="nccl", engine_kwargs={"nccl": options})


@pytest.mark.usefixtures("on_gpus")
def test_a_split_extractor_needs_slots_for_servers_and_a_way_to_send_weights(config: DictConfig) -> None:
    config.comprl.extractor.placement = "split"
    config.extractor.rollout.nnodes = 0
    lines = mistakes(config)
    assert any("extractor.rollout.nnodes=0" in line for line in lines)
    assert any("checkpoint_engine.backend=naive" in line for line in lines)
    config.extractor.rollout.nnodes = config.extractor.rollout.n_gpus_per_node = 1
    config.extractor.rollout.checkpoint_engine.backend = "comprl_gloo"
    assert any(line.startswith("extractor.") and "module=None must be" in line for line in mistakes(config))
    send_over_nccl(config)
    (line,) = mistakes(config)
    assert line.startswith("extractor.rollout.checkpoint_engine.engine_kwargs.nccl.rebuild_group must be true")
    send_over_nccl(config, rebuild_group=True)
    validate(config)
    config.trainer.v1.trainer_mode = "comprl_separate_async"
    config.actor_rollout_ref.rollout.checkpoint_engine.backend = "nccl"
    assert any("engine_kwargs.nccl.group_name must differ" in line for line in mistakes(config))


@pytest.mark.parametrize("backend", ["nccl", "nixl", "mooncake"])
def test_without_accelerators_weights_are_not_sent_from_device_to_device(config: DictConfig, backend: str) -> None:
    config.comprl.extractor.placement = "split"
    config.extractor.rollout.nnodes = config.extractor.rollout.n_gpus_per_node = 1
    send_over_nccl(config, rebuild_group=True)
    config.extractor.rollout.checkpoint_engine.backend = backend
    (line,) = mistakes(config)
    assert f"extractor.rollout.checkpoint_engine.backend={backend} needs accelerators" in line
    assert "use comprl_gloo with custom_backend_module=verl_comprl.platform.gloo_engine" in line


@pytest.mark.usefixtures("on_gpus")
@pytest.mark.parametrize(
    ("backend", "line"),
    [("ncl", "=ncl is unknown; allowed: nccl, "), ("delta_sharded", "=delta_sharded is for servers")],
)
def test_engines_that_cannot_send_the_extractors_weights_are_refused(
    config: DictConfig, backend: str, line: str
) -> None:
    config.comprl.extractor.placement = "split"
    config.extractor.rollout.nnodes = config.extractor.rollout.n_gpus_per_node = 1
    config.extractor.rollout.checkpoint_engine.backend = backend
    (found,) = mistakes(config)
    assert found.startswith(f"extractor.rollout.checkpoint_engine.backend{line}")


def test_ranks_that_share_a_sequence_share_its_samples(config: DictConfig) -> None:
    config.comprl.extractor.batch_size, config.comprl.extractor.n_gpus_per_node = 12, 8
    config.extractor.actor.ppo_micro_batch_size_per_gpu = 3
    (line,) = mistakes(config)
    assert "batch_size=12 must be a multiple of the 8 ranks" in line
    config.extractor.actor.ulysses_sequence_parallel_size = 2
    validate(config)  # 3 samples for each of 4 ranks
    config.extractor.actor.ppo_micro_batch_size_per_gpu = 2
    (line,) = mistakes(config)
    assert "ppo_micro_batch_size_per_gpu=2 must divide the 3 samples per rank" in line


def test_a_batch_of_a_shared_extractor_is_split_over_the_actors_slots(config: DictConfig) -> None:
    config.comprl.extractor.placement = "shared"
    config.trainer.n_gpus_per_node = 3
    config.comprl.extractor.batch_size = 16
    assert any("batch_size=16 must be a multiple of the 3 ranks" in line for line in mistakes(config))


@pytest.mark.usefixtures("on_gpus")
def test_adapters_must_be_merged_for_servers_in_other_processes(config: DictConfig) -> None:
    for model in (config.actor_rollout_ref, config.extractor):
        model.model.lora_rank, model.rollout.load_format = 8, "safetensors"
    validate(config)
    config.trainer.v1.trainer_mode = "comprl_separate_async"
    assert any("actor_rollout_ref.model.lora.merge=False" in line for line in mistakes(config))
    config.trainer.v1.trainer_mode = "comprl_sync"
    config.comprl.extractor.placement = "split"
    config.extractor.rollout.nnodes = config.extractor.rollout.n_gpus_per_node = 1
    send_over_nccl(config, rebuild_group=True)
    assert any("extractor.model.lora.merge=False" in line for line in mistakes(config))
    config.extractor.model.lora.merge = True
    validate(config)


@pytest.mark.parametrize(("placement", "slots"), [("own", 4), ("shared", 8), ("split", 2)])
def test_the_extractor_s_servers_are_laid_out_on_the_slots_that_they_have(
    config: DictConfig, placement: str, slots: int
) -> None:
    """What verl takes as the GPUs of a server's node, whatever the trainer's are."""
    config.trainer.n_gpus_per_node, config.comprl.extractor.n_gpus_per_node = 8, 4
    config.comprl.extractor.placement = placement
    if placement == "split":
        config.extractor.rollout.n_gpus_per_node = 2
    assert extractor_view(config).actor_rollout_ref.rollout.n_gpus_per_node == slots
