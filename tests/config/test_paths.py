"""Paths of a config as a run takes them."""

import os
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from verl_comprl.config.paths import use_absolute_paths


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with models, which is the working directory, too."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "actor").mkdir(parents=True)
    (tmp_path / "tasks.parquet").touch()
    return tmp_path


def given(**changes: Any) -> Any:
    config = OmegaConf.create(
        {
            "trainer": {"default_local_dir": "runs/one", "resume_from_path": None},
            "actor_rollout_ref": {"model": {"path": "models/actor", "tokenizer_path": "./models/actor"}},
            "extractor": {"model": {"path": "Qwen/Qwen3-4B", "tokenizer_path": None}},
            "data": {"train_files": "tasks.parquet", "val_files": ["tasks.parquet", "~/missing.parquet"]},
            "comprl": {
                "initial_bank": "",
                "bank": {"path": "${trainer.default_local_dir}/bank"},
                "queue": {"folder": "queue"},
                "embedder": {"model": "models/e5"},
            },
        }
    )
    for key, value in changes.items():
        OmegaConf.update(config, key.replace("__", "."), value)
    use_absolute_paths(config)
    return config


def test_paths_are_named_so_that_processes_elsewhere_find_them(home: Path) -> None:
    config = given()
    assert config.trainer.default_local_dir == f"{home}/runs/one" and config.trainer.resume_from_path is None
    actor, extractor = config.actor_rollout_ref.model, config.extractor.model
    assert actor.path == actor.tokenizer_path == f"{home}/models/actor"
    assert extractor == {"path": "Qwen/Qwen3-4B", "tokenizer_path": None} and config.comprl.initial_bank == ""
    assert config.comprl.queue.folder == f"{home}/queue" and config.data.train_files == f"{home}/tasks.parquet"
    assert config.data.val_files == [f"{home}/tasks.parquet", f"{home}/missing.parquet"]
    assert config.comprl.embedder.model == "models/e5", "a bank compares it with the one that it was built with"
    assert OmegaConf.is_interpolation(config.comprl.bank, "path"), "it follows the run's folder"
    assert not os.path.exists("runs")
    assert OmegaConf.to_yaml(config) == OmegaConf.to_yaml(given()), "a second time changes nothing"


def test_a_tilde_is_the_home_folder(home: Path) -> None:
    paths = {"trainer__default_local_dir": "~/runs/one", "comprl__embedder__model": "~/models/e5"}
    config = given(**paths, comprl__bank__path="~/bank", extractor__model__path="~/models/missing")
    assert config.trainer.default_local_dir == f"{home}/runs/one" and config.comprl.bank.path == f"{home}/bank"
    assert config.comprl.embedder.model == f"{home}/models/e5"
    assert config.extractor.model.path == f"{home}/models/missing", "so that it is reported as a folder, not as a name"
