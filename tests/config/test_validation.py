"""Bad input gets one line: what, which value, and what to do."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import DictConfig, OmegaConf

from verl_comprl.config.paths import use_absolute_paths
from verl_comprl.config.validation import ConfigError, check_cluster_slots, validate


def mistakes(config: DictConfig) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        validate(config)
    return str(caught.value).splitlines()


def test_a_good_config_passes(config: DictConfig) -> None:
    validate(config)


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        (
            "comprl.guided_fraction",
            0,
            "comprl.guided_fraction=0 is not allowed; it must be a number greater than 0 and at",
        ),
        ("comprl.guided_fraction", 1.5, "comprl.guided_fraction=1.5 .*greater than 0 and at most 1"),
        ("comprl.guided_fraction", -0.5, "comprl.guided_fraction=-0.5 .*greater than 0 and at most 1"),
        ("comprl.initial_bank", "/nowhere", "comprl.initial_bank=/nowhere is no snapshot; make one with"),
        ("comprl.extractor.distill", False, "comprl.initial_bank must name a snapshot, as comprl.extractor.distill=F"),
        ("comprl.guided_fraction", 0.3, "comprl.guided_fraction=0.3 of .*rollout.n=8 rollouts is 2.4; .* whole"),
        ("actor_rollout_ref.rollout.n", 0, "rollout.n=0 rollouts is 0; both halves must be whole and non-empty"),
        ("actor_rollout_ref.rollout.val_kwargs.n", 1, "val_kwargs.n=1: .* use an even number of at least 2"),
        ("actor_rollout_ref.rollout.val_kwargs.n", 3, "val_kwargs.n=3: .* use an even number of at least 2"),
        ("comprl.extractor.batch_size", 0, "comprl.extractor.batch_size=0 is not allowed; it must be a whole number g"),
        ("comprl.extractor.batch_size", -64, "comprl.extractor.batch_size=-64 is not allowed; .*greater than 0"),
        ("comprl.extractor.distillation_workers", 0, "extractor.distillation_workers=0 .*greater than 0"),
        ("comprl.extractor.max_operations", 0, "extractor.max_operations=0 .*greater than 0"),
        ("comprl.extractor.n_gpus_per_node", 0, "extractor.n_gpus_per_node=0 .*greater than 0"),
        ("comprl.bank.capacity", 0, "comprl.bank.capacity=0 is not allowed; it must be a whole number greater than 0"),
        ("comprl.merge.chunk", 0, "comprl.merge.chunk=0 .*greater than 0"),
        ("comprl.search_and_ask.timeout", 0, "comprl.search_and_ask.timeout=0 .*a number greater than 0"),
        ("comprl.search_and_ask.max_calls", -1, "comprl.search_and_ask.max_calls=-1 .*of at least 0"),
        ("comprl.extractor.alpha", -0.5, "comprl.extractor.alpha=-0.5 .*of at least 0"),
        ("comprl.extractor.max_staleness", -1, "max_staleness=-1 .*null or a whole number of at least 0"),
        (
            "data.train_batch_size",
            3,
            "data.train_files have 2 rows, but data.train_batch_size=3; make more with `comprl",
        ),
        ("comprl.environments.isolation", "docker", "isolation='docker' .*one of auto, thread, process"),
        ("comprl.environments.step_timeout", 0, "comprl.environments.step_timeout=0 .*a number greater than 0"),
        ("comprl.environments.max_idle", None, "comprl.environments.max_idle=None .*greater than 0"),
        ("comprl.exploration", 1.5, "comprl.exploration=1.5 .*a number of at least 0 and at most 1"),
        ("comprl.exploration", "some", "comprl.exploration='some' .*a number"),
        ("comprl.extractor.utility", "gain", "utility='gain' .*one of outcome, relative"),
        ("comprl.actor_critic.train", True, "actor_critic.train=true needs comprl.actor_critic.enabled=true"),
        ("comprl.actor_critic.timeout", 0, "comprl.actor_critic.timeout=0 .*greater than 0"),
        ("comprl.self_distillation.weight", -1, "comprl.self_distillation.weight=-1 .*of at least 0"),
        ("comprl.self_distillation.weight", "x", "comprl.self_distillation.weight='x' .*must be a number"),
        ("comprl.self_distillation.every", 0, "comprl.self_distillation.every=0 .*greater than 0"),
        ("comprl.extractor.cooldown", -1, "comprl.extractor.cooldown=-1 .*of at least 0"),
        ("comprl.guide_per", "group", "comprl.guide_per='group' .*one of rollout, prompt"),
        ("comprl.bank.candidate_dropout", 2, "comprl.bank.candidate_dropout=2 .*at least 0 and at most 1"),
        ("comprl.bank.diversity", -1, "comprl.bank.diversity=-1 .*of at least 0"),
        ("comprl.bank.capacity", "many", "comprl.bank.capacity='many' .*a whole number greater than 0"),
        ("comprl.bank.url", "localhost:6333", "comprl.bank.url='localhost:6333' must start with http:// or https://"),
        ("comprl.queue.overflow", "block", "comprl.queue.overflow='block' .*one of spill, drop_oldest"),
        ("comprl.queue.max_attempts", 0, "comprl.queue.max_attempts=0 .*greater than 0"),
        ("comprl.embedder.timeout", 0, "comprl.embedder.timeout=0 .*greater than 0"),
        ("comprl.warmup_steps", -1, "comprl.warmup_steps=-1 .*of at least 0"),
        ("comprl.merge.every", -5, "comprl.merge.every=-5 .*of at least 0"),
        ("comprl.bank.scope", "tasks", "comprl.bank.scope='tasks' .*one of all, environment, task"),
        ("actor_rollout_ref.actor.optim.lr", "fast", "actor.optim.lr='fast' is not allowed; it must be a number$"),
        ("actor_rollout_ref.actor.optim.lr", None, "actor_rollout_ref.actor.optim.lr=None is not allowed"),
        ("actor_rollout_ref.actor.optim.weight_decay", True, "optim.weight_decay=True is not allowed; it must be a n"),
        ("extractor.actor.optim.lr_warmup_steps", "1e1o", "extractor.actor.optim.lr_warmup_steps='1e1o' is not"),
        ("extractor.actor.optim.betas", [0.9, "x"], r"extractor.actor.optim.betas=\[0.9, 'x'\] is not allowed"),
        ("extractor.actor.checkpoint.async_save", True, "extractor.actor.checkpoint.async_save=true is not allowed"),
        ("actor_rollout_ref.model.path", None, "actor_rollout_ref.model.path is missing; give a folder or the name"),
        ("extractor.model.path", "", "extractor.model.path is missing; give a folder or the name"),
        (
            "extractor.model.path",
            "./no/model",
            "extractor.model.path=./no/model has no config.json; give a model folder",
        ),
        (
            "extractor.actor.ppo_micro_batch_size_per_gpu",
            5,
            "ppo_micro_batch_size_per_gpu=5 must divide the 64 samples",
        ),
        ("comprl.extractor.nnodes", 3, "comprl.extractor.batch_size=64 must be a multiple of the 3 ranks"),
        (
            "data.train_files",
            ["no.parquet"],
            "data.train_files: no.parquet does not exist; make one with `comprl data`",
        ),
        ("data.val_files", "no.parquet", "data.val_files: no.parquet does not exist; make one with `comprl data`"),
        ("data.val_files", None, "^data.val_files is missing; make a file with `comprl data`"),
    ],
)
def test_each_mistake_is_one_line_with_value_and_remedy(config: DictConfig, key: str, value: Any, line: str) -> None:
    OmegaConf.update(config, key, value)
    (message,) = mistakes(config)
    assert re.search(line, message), message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("actor_rollout_ref.actor.optim.lr", 0),
        ("actor_rollout_ref.actor.optim.min_lr_ratio", None),
        ("actor_rollout_ref.actor.optim.optimizer", "Adam"),
        ("critic.optim.lr", "fast"),  # which is not used
        ("comprl.guided_fraction", 0.25),
        ("comprl.guided_fraction", 1),
        ("comprl.initial_bank", "hf://datasets/user/name"),
        ("comprl.merge.every", 0),
        ("comprl.search_and_ask.max_calls", 0),
        ("comprl.warmup_steps", 0),
        ("comprl.extractor.alpha", 0),
        ("comprl.bank.scope", "task"),
        ("extractor.model.path", "organisation/name-on-the-hub"),
        ("extractor.actor.ppo_micro_batch_size_per_gpu", None),
    ],
)
def test_what_is_allowed_passes(config: DictConfig, key: str, value: Any) -> None:
    OmegaConf.update(config, key, value)
    validate(config)


def test_a_critic_s_optimizer_counts_if_there_is_a_critic(config: DictConfig) -> None:
    config.critic.enable, config.critic.optim.lr = True, "fast"
    assert mistakes(config) == ["critic.optim.lr='fast' is not allowed; it must be a number"]


@pytest.mark.parametrize("key", ["actor.ppo_micro_batch_size_per_gpu", "rollout.log_prob_micro_batch_size_per_gpu"])
def test_micro_batches_fill_a_mini_batch(config: DictConfig, key: str) -> None:
    ours = config.actor_rollout_ref
    ours.rollout.n = 14
    config.trainer.nnodes, config.trainer.n_gpus_per_node, ours.rollout.tensor_model_parallel_size = 1, 1, 1
    ours.actor.use_dynamic_bsz = ours.rollout.log_prob_use_dynamic_bsz = False
    OmegaConf.update(ours, key, 7)
    validate(config)
    OmegaConf.update(ours, key, 8)
    assert [line.partition(", or ")[0] for line in mistakes(config)] == [
        f"actor_rollout_ref.{key}=8 must divide the 14 rollouts of a mini-batch per device slot "
        "(actor_rollout_ref.actor.ppo_mini_batch_size * actor_rollout_ref.rollout.n)"
    ]
    ours.actor.use_dynamic_bsz = ours.rollout.log_prob_use_dynamic_bsz = True
    validate(config)


def test_the_micro_batch_is_not_looked_at_when_batches_are_dynamic(config: DictConfig) -> None:
    config.extractor.actor.ppo_micro_batch_size_per_gpu = 5
    config.extractor.actor.use_dynamic_bsz = True
    validate(config)


@pytest.fixture
def odd_group(config: DictConfig) -> DictConfig:
    """7 rollouts of a prompt, which one rank trains."""
    config.trainer.n_gpus_per_node = config.actor_rollout_ref.rollout.tensor_model_parallel_size = 1
    config.actor_rollout_ref.rollout.n = 7
    return config


def test_what_is_missing_comes_first(config: DictConfig) -> None:
    """The rest may follow from it, as the requests of a batch that nobody has chosen."""
    config.actor_rollout_ref.model.path = config.data.train_files = None
    config.data.train_batch_size = 1024
    actor, files, batch, *others = mistakes(config)
    assert actor.startswith("actor_rollout_ref.model.path is missing")
    assert files.startswith("data.train_files is missing")
    assert batch == "data.train_batch_size=1024 must be at most the number of tasks in data.train_files"
    assert any("max_num_seqs" in line for line in others)


def test_an_odd_group_has_no_halves(odd_group: DictConfig) -> None:
    (line,) = mistakes(odd_group)
    assert line == "actor_rollout_ref.rollout.n=7 is odd, but half of K rollouts are guided; use an even number"


def test_all_mistakes_are_reported_at_once(odd_group: DictConfig) -> None:
    config = odd_group
    config.comprl.extractor.batch_size = 0
    config.comprl.bank.scope = "?"
    assert len(mistakes(config)) == 3


# ---- datasets ----


def dataset(config: DictConfig, tmp_path: Path, *rows: dict[str, Any]) -> Path:
    path = tmp_path / "bad.parquet"
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    config.data.train_files = [str(path)]
    return path


def row(environment: Any = "minihack", **options: Any) -> dict[str, Any]:
    return {"extra_info": {"environment": environment, "environment_options": json.dumps(options)}}


@pytest.mark.parametrize(
    ("bad", "line"),
    [
        (row("chess"), "unknown environment 'chess'; known: .*minihack"),
        (row(variant="castle"), "castle"),
        (row(speed=3), "environment 'minihack' has no option 'speed'; its options: variant, protocol, max_turns"),
        (row(max_turns=0), "max_turns must be a positive integer, got 0"),
        ({"extra_info": {"index": 3}}, "rows without extra_info.environment.*; make it with `comprl data`"),
        ({"extra_info": {"environment": "minihack", "environment_options": "{"}}, "bad.parquet"),
        ({"question": "6 * 7?"}, "rows without extra_info.environment.*; make it with `comprl data`"),
    ],
)
def test_a_dataset_that_cannot_be_played_is_named(
    config: DictConfig, tmp_path: Path, bad: dict[str, Any], line: str
) -> None:
    path = dataset(config, tmp_path, bad)
    (message,) = mistakes(config)
    assert message.startswith(f"data.train_files: {path}")
    assert re.search(line, message), message


def test_a_row_without_details_among_good_ones_is_found(config: DictConfig, tmp_path: Path) -> None:
    dataset(config, tmp_path, row(variant="room"), {"extra_info": None})
    (message,) = mistakes(config)
    assert "rows without extra_info.environment" in message


def test_each_environment_is_reported_once_however_many_rows_ask_for_it(config: DictConfig, tmp_path: Path) -> None:
    dataset(config, tmp_path, *[row("chess")] * 3, *[row("go")] * 3, row(variant="room"))
    assert len(mistakes(config)) == 2


def test_a_file_that_is_no_parquet_is_named(config: DictConfig, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text("{}")
    config.data.val_files = str(path)
    (message,) = mistakes(config)
    assert str(path) in message


def test_a_home_folder_is_expanded(config: DictConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config.data.train_files = ["~/rows.parquet"]
    config.extractor.model.path = "~/model"
    use_absolute_paths(config)
    validate(config)


# ---- slots ----


def test_too_few_device_slots(config: DictConfig) -> None:
    config.trainer.nnodes, config.trainer.n_gpus_per_node = 2, 3
    config.comprl.extractor.n_gpus_per_node = 2
    with pytest.raises(ConfigError) as caught:
        check_cluster_slots(config, {"GPU": 7.0, "CPU": 999.0})
    message = str(caught.value)
    assert "Ray has 7 device slots (GPU), but 8 are needed: 6 for the actor" in message
    assert "2 for the extractor" in message and "ray_kwargs.ray_init.num_gpus" in message and "\n" not in message


def test_no_devices_at_all(config: DictConfig) -> None:
    with pytest.raises(ConfigError, match="Ray has 0 device slots"):
        check_cluster_slots(config, {"CPU": 999.0})


def test_too_few_cpu_slots(config: DictConfig) -> None:
    config.trainer.n_gpus_per_node = 1
    check_cluster_slots(config, {"GPU": 2.0, "CPU": 17.0})  # 3 · (1 + 1) + 8 + 3
    with pytest.raises(
        ConfigError, match=r"Ray has 16 CPU slots, but at least 17 are needed; set ray_kwargs.ray_init.num_cpus"
    ):
        check_cluster_slots(config, {"GPU": 2.0, "CPU": 16.0})
    config.transfer_queue.backend.SimpleStorage.num_data_storage_units = 1
    check_cluster_slots(config, {"GPU": 2.0, "CPU": 10.0})


def test_a_running_cluster_needs_more_nodes_not_other_settings(
    config: DictConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.trainer.n_gpus_per_node = 1
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    for resources in ({"GPU": 1.0, "CPU": 99.0}, {"GPU": 2.0, "CPU": 9.0}):
        with pytest.raises(ConfigError, match=r"tart more nodes.*COMPRL_RAY_START") as caught:
            check_cluster_slots(config, resources)
        assert "ray_init" not in str(caught.value)


# ---- arms ----


def test_without_experience_nothing_is_asked_of_the_extractor(odd_group: DictConfig) -> None:
    config = odd_group
    config.comprl.experience = False
    config.extractor.model.path = None
    config.actor_rollout_ref.rollout.val_kwargs.n = 1
    validate(config)
    check_cluster_slots(config, {"GPU": config.trainer.n_gpus_per_node, "CPU": 100})


SMOLLM2 = {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536}  # 49152 · 576 · 4 bytes = 108 MiB


@pytest.mark.parametrize(
    ("fields", "megabytes", "settings", "needed"),
    [
        (SMOLLM2, 32, {}, 108),
        (SMOLLM2, 107, {}, 108),
        (SMOLLM2, 108, {}, None),
        (SMOLLM2, 53, {"fsdp_config.model_dtype": "bf16"}, 54),
        ({"vocab_size": 2560, "hidden_size": 4096, "intermediate_size": 16384}, 32, {}, 256),
        ({"model_type": "vlm", "text_config": SMOLLM2}, 32, {}, 108),
        ({"n_embd": 768}, 1, {}, None),
    ],
)
@pytest.mark.parametrize("subtree", ["actor_rollout_ref", "extractor"])
def test_the_weight_syncs_bucket_holds_the_largest_tensor(
    config: DictConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    subtree: str,
    fields: dict[str, Any],
    megabytes: int,
    settings: dict[str, Any],
    needed: int | None,
) -> None:
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "config.json").write_text(json.dumps(fields))
    config[subtree].model.path = str(tmp_path / "large")
    config[subtree].rollout.checkpoint_engine.update_weights_bucket_megabytes = megabytes
    for key, value in settings.items():
        OmegaConf.update(config[subtree].actor, key, value)
    if needed is None:
        validate(config)
        return
    name = f"{subtree}.rollout.checkpoint_engine.update_weights_bucket_megabytes"
    place = tmp_path / "large"
    (line,) = mistakes(config)
    assert line == f"{name}={megabytes} is too small for the largest tensor of {place}; it must be at least {needed}"


def test_with_an_accelerator_any_bucket_will_do(config: DictConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_PLATFORM", "cuda")
    (Path(config.extractor.model.path) / "config.json").write_text(json.dumps(SMOLLM2))
    config.extractor.rollout.checkpoint_engine.update_weights_bucket_megabytes = 1
    validate(config)
    config.extractor.rollout.checkpoint_engine.backend = "comprl_gloo"
    assert any("update_weights_bucket_megabytes=1 is too small" in line for line in mistakes(config))


def test_a_model_that_is_not_on_this_machine_is_not_measured(
    config: DictConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    config.extractor.rollout.checkpoint_engine.update_weights_bucket_megabytes = 1
    for path in ("nobody/has-this-model", "hdfs://somewhere/model"):
        config.extractor.model.path = path
        validate(config)


def test_a_model_in_the_hubs_cache_is_measured(
    config: DictConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--someone--small"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    (repository / "snapshots" / "abc").mkdir(parents=True)
    (repository / "snapshots" / "abc" / "config.json").write_text(json.dumps(SMOLLM2))
    config.extractor.model.path = "someone/small"
    config.extractor.rollout.checkpoint_engine.update_weights_bucket_megabytes = 32
    (line,) = mistakes(config)
    assert "largest tensor of someone/small; it must be at least 108" in line
