"""A run that was asked to stop does so at the next step that has a checkpoint."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from verl_comprl.display.progress import Progress
from verl_comprl.trainer.trainer import ComplementarySync, RunInterrupted


@pytest.fixture
def trainer(tmp_path: Path) -> Any:
    """A trainer before its fifth step, with nothing but what the decision needs."""
    trainer: Any = object.__new__(ComplementarySync)
    trainer.config = OmegaConf.create({"trainer": {"default_local_dir": str(tmp_path)}})
    trainer.progress = Progress()
    trainer.global_steps, trainer.total_training_steps = 5, 8
    trainer._stop_requested, trainer._saved_step = False, -1
    return trainer


def test_it_stops_where_there_is_a_checkpoint(trainer: Any, tmp_path: Path) -> None:
    trainer._saved_step = 4
    trainer.on_step_begin()
    trainer.request_stop()
    with pytest.raises(RunInterrupted, match=f"stopped after step 4; checkpoint in {tmp_path}/global_step_4"):
        trainer.on_step_begin()


def test_a_request_during_an_evaluation_needs_another_step_for_its_checkpoint(trainer: Any) -> None:
    trainer._saved_step = 2
    trainer.request_stop()
    trainer.on_step_begin()
