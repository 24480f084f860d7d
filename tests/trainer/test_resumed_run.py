"""A run that is resumed ends with the same bits as one that was not interrupted (``arm=baseline``, same seed)."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from arm_settings import SMALL
from running import read_steps, run_lent
from torch.utils._pytree import keystr, tree_flatten_with_path

from verl_comprl.record import RunRecord

pytestmark = [pytest.mark.run, pytest.mark.long, pytest.mark.timeout(1500)]

SAVED, STEPS = 2, 4
SETTINGS = [
    "arm=baseline",
    "trainer.save_freq=2",
    "actor_rollout_ref.rollout.full_determinism=true",
    "actor_rollout_ref.rollout.n=4",
    f"trainer.total_training_steps={STEPS}",
]


def state(checkpoint: Path) -> dict[str, Any]:
    """Return all that verl saves, by path: weights, optimizer, schedule, random states and the place in the data."""
    files = [*checkpoint.glob("actor/*.pt"), checkpoint / "data.pt"]
    states = {file.name: torch.load(file, weights_only=False) for file in files}  # verl's own format
    return {keystr(path): getattr(value, "_local_tensor", value) for path, value in tree_flatten_with_path(states)[0]}


def played(run: Path) -> dict[str, tuple[str, float]]:
    episodes = RunRecord(run).episodes(steps=range(SAVED + 1, STEPS + 1))
    return {episode["id"]: (episode["output"], episode["advantage"]) for episode in episodes}


def test_a_resumed_baseline_equals_the_uninterrupted_one_bit_for_bit(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("resumed")
    for name in ("models", "data"):
        (place / name).symlink_to(folder / name)
    saved = place / "whole" / f"global_step_{SAVED}"
    resumed = [*SETTINGS, "trainer.resume_mode=resume_path", f"trainer.resume_from_path={saved}"]
    runs = [{"name": "whole", "overrides": SETTINGS}, {"name": "resumed", "overrides": resumed}]
    run_lent(place, runs, [*SMALL, f"trainer.default_local_dir={place}"])

    assert [step["step"] for step in read_steps(place / "resumed")] == list(range(SAVED + 1, STEPS + 1))
    # Something was learned after the checkpoint, or there would be nothing to compare.
    assert max(step["actor/grad_norm"] for step in read_steps(place / "resumed")) > 0
    assert played(place / "resumed") == played(place / "whole") != {}
    expected, found = (state(place / name / f"global_step_{STEPS}") for name in ("whole", "resumed"))
    assert expected.keys() == found.keys()
    assert [name for name in expected if not np.array_equal(expected[name], found[name])] == []
    shutil.rmtree(place)
