"""Checkpoints that this release cannot read are refused before anything of the run is opened."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from omegaconf import DictConfig, OmegaConf
from ray.exceptions import RayTaskError

from verl_comprl.config.composing import compose
from verl_comprl.config.reading import ConfigError
from verl_comprl.config.saved import save_config
from verl_comprl.config.tree import ComprlConfig
from verl_comprl.experience import StoreError
from verl_comprl.extractor.generation_record import GenerationRecord, write_records
from verl_comprl.manager.opening import Opening
from verl_comprl.trainer import experience_runtime
from verl_comprl.trainer.checkpoint import contents
from verl_comprl.trainer.checkpoint.contents import STATE_FILE, check, check_ranks, check_same_run
from verl_comprl.trainer.checkpoint.full_disk import is_full
from verl_comprl.trainer.experience_runtime import ExperienceRuntime


@pytest.fixture
def config() -> DictConfig:
    return compose(None, None, ["trainer.default_local_dir=nowhere"])


@pytest.fixture
def folder(tmp_path: Path, make_record: Callable[..., GenerationRecord]) -> Path:
    """The parts of a checkpoint that are looked at."""
    (tmp_path / "comprl" / "buffer").mkdir(parents=True)
    (tmp_path / "extractor").mkdir()
    (tmp_path / STATE_FILE).write_text("{}")
    write_records(tmp_path / "comprl" / "buffer" / "records.parquet", [make_record("a")])
    return tmp_path


def make_old(folder: Path) -> None:
    """Remove what release 0.1.0 did not write."""
    file = folder / "comprl" / "buffer" / "records.parquet"
    pq.write_table(pq.read_table(file).drop_columns(["format_failure"]), file)


def test_a_checkpoint_of_this_release_is_accepted(folder: Path) -> None:
    check(folder)


def test_the_refusal_of_an_older_one_says_what_to_do(folder: Path) -> None:
    make_old(folder)
    with pytest.raises(ValueError, match=r"continue this run with the release that wrote it.*comprl\.initial_bank="):
        check(folder)


def test_a_frozen_extractors_checkpoint_cannot_be_continued_with_an_engine(folder: Path) -> None:
    (folder / "extractor").rmdir()
    check(folder, has_engine=False)
    with pytest.raises(FileNotFoundError, match=r"no weights of an extractor: .*backend=endpoint or actor.*initial_b"):
        check(folder)


@pytest.fixture
def eight_and_two(folder: Path) -> Path:
    """Its actor was trained on eight slots, its extractor on two."""
    (folder / "actor").mkdir()
    for model, ranks in (("actor", 8), ("extractor", 2)):
        for rank in range(ranks):
            (folder / model / f"model_world_size_{ranks}_rank_{rank}.pt").touch()
    return folder


def test_a_run_with_other_slots_is_refused_with_both_numbers(eight_and_two: Path, config: DictConfig) -> None:
    config.trainer.update(nnodes=2, n_gpus_per_node=4)
    config.comprl.extractor.update(nnodes=1, n_gpus_per_node=2)
    check_ranks(eight_and_two, config)
    config.trainer.nnodes, config.comprl.extractor.n_gpus_per_node = 1, 1
    with pytest.raises(ConfigError) as caught:
        check_ranks(eight_and_two, config)
    actor, extractor = str(caught.value).splitlines()
    assert "actor was written on 8 device slots, but this run has 4 (trainer.nnodes * trainer.n_gpus_per_no" in actor
    assert "extractor was written on 2 device slots, but this run has 1 (comprl.extractor.nnodes *" in extractor
    config.trainer.nnodes = 2
    config.comprl.extractor.update(backend="actor", train=False)
    check_ranks(eight_and_two, config)  # the extractor is not loaded


def test_a_shared_extractor_has_the_actors_slots(eight_and_two: Path, config: DictConfig) -> None:
    config.trainer.update(nnodes=1, n_gpus_per_node=8)
    config.comprl.extractor.update(placement="shared", n_gpus_per_node=2)
    with pytest.raises(ConfigError, match=r"extractor was written on 2 .* has 8 \(trainer\.nnodes \* trainer\."):
        check_ranks(eight_and_two, config)


def test_a_checkpoint_of_another_engine_is_left_to_verl(folder: Path, config: DictConfig) -> None:
    check_ranks(folder, config)


@pytest.mark.parametrize("key", ["comprl.arm", "actor_rollout_ref.model.path", "extractor.model.lora_rank"])
def test_a_run_does_not_continue_one_of_another_arm_or_model(tmp_path: Path, config: DictConfig, key: str) -> None:
    saved = tmp_path / "global_step_4"
    config.actor_rollout_ref.model.path = "actor"
    check_same_run(saved, config)  # nothing is known about the run that wrote it
    save_config(config, tmp_path)
    check_same_run(saved, config)
    before = OmegaConf.select(config, key)
    OmegaConf.update(config, key, 7 if key.endswith("rank") else "other")
    with pytest.raises(ConfigError) as caught:
        check_same_run(saved, config)
    (line,) = str(caught.value).splitlines()
    assert f"has {key}={before} (now {OmegaConf.select(config, key)}); give this run another trainer.defa" in line
    assert line.endswith(f"trainer.resume_mode=resume_path trainer.resume_from_path={saved}")
    config.trainer.resume_mode = "resume_path"
    check_same_run(saved, config)


def test_an_adapter_keeps_its_scale_and_weights_their_sharding(tmp_path: Path, config: DictConfig) -> None:
    """The files of an adapter do not have its alpha, and FSDP1 and FSDP2 write the same names in other forms."""
    saved = tmp_path / "global_step_4"
    config.actor_rollout_ref.model.lora_rank = 8
    save_config(config, tmp_path)
    config.extractor.model.lora_alpha = 64  # which has no adapter
    check_same_run(saved, config)
    config.actor_rollout_ref.model.lora_alpha, config.extractor.actor.strategy = 64, "fsdp"
    with pytest.raises(ConfigError) as caught:
        check_same_run(saved, config)
    expected = "has actor_rollout_ref.model.lora_alpha=16 (now 64), extractor.actor.strategy=fsdp2 (now fsdp); give"
    assert expected in str(caught.value)
    config.actor_rollout_ref.model.lora_alpha, config.extractor.actor.strategy = 16, "fsdp2"
    config.actor_rollout_ref.model.exclude_modules = ["lm_head"]  # null before
    with pytest.raises(ConfigError, match=r"exclude_modules=None \(now \['lm_head'\]\)"):
        check_same_run(saved, config)


@pytest.mark.parametrize("mode", ["colocate_async", "separate_async"])
def test_the_synchronous_trainer_does_not_continue_an_asynchronous_one(
    tmp_path: Path, config: DictConfig, mode: str
) -> None:
    """Its checkpoint has prompts in flight, which only the asynchronous ones restore."""
    saved = tmp_path / "global_step_4"
    config.trainer.v1.trainer_mode = f"comprl_{mode}"
    save_config(config, tmp_path)
    for other in ("colocate_async", "separate_async"):  # verl's name, as the trainers give it to verl
        config.trainer.v1.trainer_mode = other
        check_same_run(saved, config)
    config.trainer.v1.trainer_mode = "sync"
    with pytest.raises(ConfigError, match=rf"has trainer\.v1\.trainer_mode=comprl_{mode} \(now sync\)"):
        check_same_run(saved, config)
    config.trainer.resume_mode = "resume_path"
    check_same_run(saved, config)


def test_a_torn_configuration_is_named_and_no_permission_to_continue_another_run(
    tmp_path: Path, config: DictConfig
) -> None:
    (tmp_path / "config.yaml").write_text("comprl:\n  arm: 'compl")
    with pytest.raises(
        ConfigError, match=r"config\.yaml is not YAML: .*; delete it if the checkpoint global_step_4 is"
    ):
        check_same_run(tmp_path / "global_step_4", config)


def test_a_run_continues_with_another_back_end_and_a_path_written_differently(
    tmp_path: Path, config: DictConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    config.actor_rollout_ref.model.path = "model"
    save_config(config, tmp_path)
    config.actor_rollout_ref.model.path, config.extractor.model.path = str(tmp_path / "model"), "another"
    config.comprl.extractor.update(backend="actor", train=False)  # so the extractor's own model is not loaded
    check_same_run(tmp_path / "global_step_4", config)


def test_a_checkpoint_of_plain_verl_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not a verl-comprl checkpoint"):
        check(tmp_path)


def test_the_bank_is_not_opened_for_a_checkpoint_that_cannot_be_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    monkeypatch.setattr(experience_runtime, "start_manager", lambda *_: (None, None))
    monkeypatch.setattr(experience_runtime, "wait_for", lambda *_: None)
    monkeypatch.setattr(experience_runtime, "open_bank", lambda *given: opened.append(given[-1]))
    monkeypatch.setattr(experience_runtime, "comprl_config", lambda _: ComprlConfig.model_construct())
    ExperienceRuntime(OmegaConf.create()).open(folder, is_own=True)
    make_old(folder)
    with pytest.raises(ValueError, match="release that wrote it"):
        ExperienceRuntime(OmegaConf.create()).open(folder, is_own=True)
    assert opened == [Opening(keep_content=True, checkpoint=folder / "comprl")]


@pytest.mark.parametrize("store", [False, True])
def test_a_manager_that_cannot_write_is_an_error_of_this_process_with_its_number(tmp_path: Path, store: bool) -> None:
    """Ray's error has none, so that a full disk would look like any failure."""
    cause = StoreError("No space") if store else OSError(28, "No space left on device")
    failure = RayTaskError("save", "its traceback", cause)

    def save(folder: str) -> None:
        raise failure.as_instanceof_cause()

    extractor: Any = SimpleNamespace(
        lock=threading.Lock(), save=lambda folder: folder.mkdir(), weight_version=1, work_is_late=False
    )
    folder = tmp_path / "global_step_3"
    with pytest.raises(type(cause), match="No space") as raised:
        contents.save(folder, 3, extractor, save, 1.0)
    assert type(raised.value) is type(cause) and is_full(raised.value, tmp_path) is not store
    assert not (folder / STATE_FILE).exists() and not extractor.lock.locked()
