"""The default config, composed by Hydra as the launcher does it."""

import copy
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from verl_comprl.config.generate import YAML_FILE


@pytest.fixture(scope="session")
def composed() -> DictConfig:
    with initialize_config_module("verl_comprl.config", version_base=None):
        return compose("comprl_trainer", overrides=["hydra.searchpath=[pkg://verl.trainer.config]"])


@pytest.fixture
def shipped() -> DictConfig:
    """Our group alone with what it refers to: cheaper than the whole config, for tests of single settings."""
    trainer = {"default_local_dir": "run", "project_name": "project", "experiment_name": "experiment"}
    return OmegaConf.create({"trainer": trainer, "comprl": OmegaConf.load(YAML_FILE)})


@pytest.fixture
def config(composed: DictConfig, tmp_path: Path) -> DictConfig:
    """A config that passes: two model folders, a dataset of MiniHack, a micro-batch size."""
    model, data = tmp_path / "model", tmp_path / "rows.parquet"
    model.mkdir()
    (model / "config.json").write_text("{}")
    row = {"extra_info": {"environment": "minihack", "environment_options": '{"variant": "room"}'}}
    pq.write_table(pa.Table.from_pylist([row, row]), data)
    config = copy.deepcopy(composed)
    config.actor_rollout_ref.model.path = config.extractor.model.path = str(model)
    config.data.train_files = [str(data)]
    config.data.val_files = str(data)
    config.data.train_batch_size = 1
    config.extractor.actor.ppo_micro_batch_size_per_gpu = 4
    config.comprl.arm = "mine"  # which may set anything
    return config
