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
def test_an_evaluation_leaves_the_folders_of_runs_alone(config: DictConfig, tmp_path: Path, mode: str) -> None:
    run = tmp_path / "run"
    config.trainer.update(val_only=True, resume_mode=mode, resume_from_path="a", default_local_dir=str(run))
    run.mkdir()
    (run / "config.yaml").touch()  # of an evaluation, or of a run that left nothing to continue from
    validate(config)
    (run / "global_step_10").mkdir()
    with pytest.raises(ConfigError, match=rf"new folder: trainer.default_local_dir={run} has checkpoints of a run$"):
        validate(config)
