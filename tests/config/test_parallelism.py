"""Models, batches and sequences that cannot be divided over the GPUs are one line each."""

import re
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf, open_dict

from verl_comprl.config.validation import ConfigError, validate


@pytest.fixture
def divided(config: DictConfig) -> DictConfig:
    """4 GPUs in two ranks for the actor, 4 in two ranks for the extractor; mini-batches of 16 x 8 rollouts."""
    config.trainer.n_gpus_per_node = config.comprl.extractor.n_gpus_per_node = 4
    config.data.train_files = list(config.data.train_files) * 9  # 18 rows
    config.data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size = 18, 16
    for model in (config.actor_rollout_ref, config.extractor):
        model.actor.ulysses_sequence_parallel_size = 2
        model.actor.use_dynamic_bsz = True
    config.extractor.actor.ppo_max_token_len_per_gpu = 32768
    validate(config)
    return config


@pytest.mark.parametrize(
    ("model", "engine", "known"),
    [
        ("actor_rollout_ref", "megatron", "fsdp, fsdp2"),
        ("extractor", "megatron", "fsdp2"),
        ("extractor", "fsdp", "fsdp2"),
    ],
)
def test_engines_other_than_fsdp_are_refused(divided: DictConfig, model: str, engine: str, known: str) -> None:
    """Their settings are others, too: one line, and no error of what is looked for next."""
    with open_dict(divided):
        divided[model].actor.strategy = engine
        del divided[model].actor["ulysses_sequence_parallel_size"]
    with pytest.raises(ConfigError) as caught:
        validate(divided)
    assert str(caught.value) == f"{model}.actor.strategy={engine} is not supported; it must be one of {known}"


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        (
            "actor_rollout_ref.rollout.tensor_model_parallel_size",
            3,
            r"pipeline_model_parallel_size=3 must divide the 4 device slots of its servers",
        ),
        ("actor_rollout_ref.rollout.data_parallel_size", 4, "pipeline_model_parallel_size=8 must divide the 4 d"),
        ("actor_rollout_ref.rollout.pipeline_model_parallel_size", 4, "parallel_size=8 must divide the 4"),
        ("extractor.rollout.expert_parallel_size", 4, r"expert_parallel_size=4 must be 1 or tensor.*parallel_size=1$"),
        (
            "extractor.rollout.tensor_model_parallel_size",
            8,
            r"^extractor.rollout.tensor.*=8 must divide the 4 .*\(comprl.extractor.nnodes \* comprl.extractor.n_gpus_p",
        ),
        ("extractor.actor.ulysses_sequence_parallel_size", 8, "extractor.actor.ulysses_.*=8 must divide its 4 device"),
        ("actor_rollout_ref.actor.ulysses_sequence_parallel_size", 3, "actor.ulysses_.*=3 must divide its 4 device"),
        (
            "extractor.actor.ppo_max_token_len_per_gpu",
            32767,
            "extractor.actor.ppo_max_token_len_per_gpu=32767 is too small: .* 65536 tokens; it must be at least 32768$",
        ),
        ("data.max_response_length", 32257, "actor.ppo_max_token_len_per_gpu=16384 .* at least 16385$"),
    ],
)
def test_what_does_not_divide(divided: DictConfig, key: str, value: int, line: str) -> None:
    OmegaConf.update(divided, key, value)
    if key == "data.max_response_length":  # the actor's two limits are one setting
        OmegaConf.update(divided, "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu", 16385)
    with pytest.raises(ConfigError) as caught:
        validate(divided)
    (message,) = str(caught.value).splitlines()
    assert re.search(line, message), message


def test_ranks_must_divide_a_mini_batch(divided: DictConfig) -> None:
    divided.trainer.n_gpus_per_node = 6
    with pytest.raises(ConfigError, match=r"ppo_mini_batch_size=16 prompts .*n=8 rollouts must be .* of the 3 ranks"):
        validate(divided)
    divided.actor_rollout_ref.actor.ppo_mini_batch_size = 18
    validate(divided)


def test_a_mini_batch_is_no_larger_than_the_batch(divided: DictConfig) -> None:
    divided.actor_rollout_ref.actor.ppo_mini_batch_size = 20
    with pytest.raises(ConfigError, match=r"ppo_mini_batch_size=20 must be at most data\.train_batch_size=18$"):
        validate(divided)


def test_by_default_a_batch_is_trained_in_one_step(config: DictConfig) -> None:
    config.data.train_batch_size = 2
    assert config.actor_rollout_ref.actor.ppo_mini_batch_size == 2


def test_a_shorter_context_bounds_the_longest_sequence(divided: DictConfig) -> None:
    divided.extractor.actor.ppo_max_token_len_per_gpu = 20000
    divided.extractor.rollout.max_model_len = 40000
    validate(divided)
    divided.extractor.rollout.max_model_len = 40001
    with pytest.raises(ConfigError, match="the longest sequence of 40001 tokens"):
        validate(divided)


def test_batches_counted_in_rows_have_no_limit_of_tokens(divided: DictConfig) -> None:
    divided.extractor.actor.ppo_max_token_len_per_gpu = 1
    divided.extractor.actor.use_dynamic_bsz = False
    validate(divided)


def test_standalone_servers_are_divided_over_their_own_gpus(
    divided: DictConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verl_comprl.config.weight_transfer.uses_cpu", lambda: False)
    actor = divided.actor_rollout_ref
    divided.trainer.v1.trainer_mode = "comprl_separate_async"
    actor.hybrid_engine = False
    actor.rollout.nnodes, actor.rollout.n_gpus_per_node, actor.rollout.tensor_model_parallel_size = 1, 8, 8
    actor.rollout.max_num_seqs = 2048
    divided.data.train_batch_size, divided.trainer.v1.separate_async.parameter_sync_step = 16, 1
    actor.rollout.checkpoint_engine.backend = "nccl"
    validate(divided)
    actor.hybrid_engine = True  # servers on the GPUs that train, too
    with pytest.raises(ConfigError, match=r"=8 must divide the 4 device slots of its servers \(trainer.nnodes"):
        validate(divided)


def test_without_an_extractor_its_settings_are_not_looked_at(divided: DictConfig) -> None:
    divided.extractor.rollout.tensor_model_parallel_size = 8
    divided.comprl.experience = False
    found = ""
    try:
        validate(divided)
    except ConfigError as error:
        found = str(error)
    assert "extractor.rollout" not in found


@pytest.mark.parametrize("model", ["actor_rollout_ref", "extractor"])
@pytest.mark.parametrize("fields", ['{"num_attention_heads": 3}', '{"text_config": {"num_attention_heads": 3}}'])
def test_attention_heads_are_divided_over_gpus(divided: DictConfig, model: str, fields: str) -> None:
    """The server asserts the first in its engine, and verl the second in its workers."""
    Path(divided.actor_rollout_ref.model.path, "config.json").write_text(fields)
    divided[model].rollout.tensor_model_parallel_size = 2
    with pytest.raises(ConfigError) as caught:
        validate(divided)
    lines = str(caught.value).splitlines()
    for name in ("rollout.tensor_model_parallel_size", "actor.ulysses_sequence_parallel_size"):
        assert any(line.startswith(f"{model}.{name}=2 must divide the 3 attention heads of ") for line in lines)


@pytest.mark.parametrize(("shared", "is_refused"), [(1, False), (2, False), (3, True), (4, False)])
def test_key_value_heads_are_divided_or_repeated(divided: DictConfig, shared: int, is_refused: bool) -> None:
    fields = f'{{"num_attention_heads": 12, "num_key_value_heads": {shared}}}'
    Path(divided.actor_rollout_ref.model.path, "config.json").write_text(fields)
    divided.actor_rollout_ref.rollout.tensor_model_parallel_size = 2
    found = ""
    try:
        validate(divided)
    except ConfigError as error:
        found = str(error)
    line = f"actor_rollout_ref.rollout.tensor_model_parallel_size=2 must divide the {shared} key-value heads of "
    assert (line in found) == is_refused
