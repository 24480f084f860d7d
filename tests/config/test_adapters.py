"""Start-up checks of LoRA's settings."""

from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf
from refused import mistakes

from verl_comprl.config.validation import validate

MODELS = pytest.mark.parametrize("subtree", ["actor_rollout_ref", "extractor"])


@pytest.fixture
def config(config: DictConfig) -> DictConfig:
    """One whose servers read the weights themselves, as adapters need it."""
    for subtree in ("actor_rollout_ref", "extractor"):
        config[subtree].rollout.load_format = "safetensors"
    return config


@MODELS
def test_a_server_of_an_adapter_reads_the_weights_that_do_not_change(config: DictConfig, subtree: str) -> None:
    config[subtree].rollout.load_format = "dummy"  # verl's default
    validate(config)
    config[subtree].model.lora_rank = 8
    (found,) = mistakes(config)
    assert found.startswith(f"{subtree}.rollout.load_format=dummy with {subtree}.model.lora_rank=8: ")
    assert found.endswith(f"use {subtree}.rollout.load_format=safetensors")
    config[subtree].model.lora.merge = True  # all weights are sent
    validate(config)


@MODELS
def test_a_rank_that_the_engine_does_not_read_is_refused(config: DictConfig, subtree: str) -> None:
    """The FSDP engine of verl would train all weights, and its server expect an adapter."""
    OmegaConf.update(config, f"{subtree}.model.lora.rank", 16, force_add=True)
    (found,) = mistakes(config)
    assert f"{subtree}.model.lora.rank=16 makes no adapter" in found and f"use {subtree}.model.lora_rank=16" in found
    config[subtree].model.lora_rank = 32  # the server would have room for 16
    assert mistakes(config) == [f"{subtree}.model.lora.rank=16 is not {subtree}.model.lora_rank=32; leave it out"]
    config[subtree].model.lora_rank = 16
    validate(config)


@MODELS
def test_an_adapter_to_begin_with_needs_its_rank(config: DictConfig, subtree: str) -> None:
    config[subtree].model.lora_adapter_path = "/adapters/mine"
    (found,) = mistakes(config)
    assert found.startswith(f"{subtree}.model.lora_adapter_path=/adapters/mine is not read without {subtree}.model.")
    config[subtree].model.lora_rank = 8
    validate(config)


@MODELS
@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("alpha", 64, "use {}.model.lora_alpha"),
        ("target_modules", ["q_proj"], "use {}.model.target_modules"),
        ("adapter_path", "/adapters/mine", "use {}.model.lora_adapter_path"),
        ("dropout", 0.1, "leave it out"),
    ],
)
def test_megatrons_settings_are_refused_where_nobody_reads_them(
    config: DictConfig, subtree: str, name: str, value: Any, remedy: str
) -> None:
    config[subtree].model.lora_rank = 32
    config[subtree].model.lora[name] = value
    (found,) = mistakes(config)
    assert found.startswith(f"{subtree}.model.lora.{name}={value} is not read with actor.strategy=fsdp2")
    assert found.endswith(remedy.format(subtree))
