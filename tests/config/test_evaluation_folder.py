"""An evaluation (``trainer.val_only``) is refused where it would change a run."""

from pathlib import Path

import pytest
from omegaconf import DictConfig

from verl_comprl.config.validation import ConfigError, validate


def test_an_evaluation_names_its_checkpoint(config: DictConfig) -> None:
    config.trainer.val_only = True
    with pytest.raises(ConfigError, match="use comprl evaluate"):
        validate(config)


@pytest.mark.parametrize("mode", ["resume_path", "disable"])  # as the command does; before any training
@pytest.mark.parametrize("name", ["config.yaml", "global_step_10"])
def test_an_evaluation_leaves_the_folders_of_runs_alone(
    config: DictConfig, tmp_path: Path, mode: str, name: str
) -> None:
    run = tmp_path / "run"
    config.trainer.update(val_only=True, resume_mode=mode, default_local_dir=str(run))
    validate(config)
    (run / name).mkdir(parents=True)
    with pytest.raises(ConfigError, match=rf"in a new folder: trainer.default_local_dir={run} has a run$"):
        validate(config)
