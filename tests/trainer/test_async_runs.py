"""Runs with verl's asynchronous trainers: two steps, and two more from their checkpoint.

``colocate_async`` on the engines that all runs share; ``separate_async`` in processes of its own, with two local
updates per step and weights that go to the server over gloo.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from running import check_record, undocumented

pytestmark = [pytest.mark.run, pytest.mark.timeout(2400)]

Steps = list[dict[str, Any]]


def groups(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def check(steps: Steps, rollouts: int) -> None:
    """Check what holds in both modes; ``rollouts`` is the number in a step."""
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    assert undocumented({name for step in steps for name in step}) == []
    for step in steps:
        assert step["comprl/guided/rollouts"] + step["comprl/free/rollouts"] == rollouts
        assert 1 <= step["comprl/rollout/span"] <= step["comprl/rollout/span_max"] <= step["step"]
        assert step["training/off_policy/trajectory_staleness/max"] < 4
    # The second batch was submitted together with the first, so it was at least begun with older weights.
    staleness = [step["training/off_policy/trajectory_staleness_worst/max"] for step in steps]
    assert staleness[0] == 0 and max(staleness) >= 1
    assert max(step["comprl/guided/rollouts"] for step in steps) > 0
    assert steps[-1]["comprl/operations/added"] > 0


def check_checkpoints(files: tuple[Path, Path], steps: Steps, prompts: int) -> None:
    """Check that a checkpoint has the prompts that are ahead, and no rows but its own step's and theirs.

    The rows of its own step have no prompt any more; they are removed when the checkpoint is loaded.
    """
    for file, number in zip(files, (2, 4), strict=True):
        (saved,) = groups(file)
        step = steps[number - 1]
        assert saved["step"] == number and saved["prompts"] == prompts
        assert saved["rows_without_prompt"] == step["comprl/guided/rollouts"] + step["comprl/free/rollouts"]


def test_colocated_rollouts_run_ahead_and_continue_after_a_resume(folder: Path, lent: dict[str, Steps]) -> None:
    steps = lent["ahead"] + lent["ahead_continued"]
    check(steps, rollouts=2 * 4)
    check_checkpoints((folder / "ahead_groups.jsonl", folder / "ahead_continued_groups.jsonl"), steps, prompts=2)
    assert (folder / "ahead" / "global_step_2" / "transfer_queue").is_dir()
    check_record(folder / "ahead")
    assert not list((folder / "static_online").glob("global_step_*/transfer_queue"))


@pytest.mark.long
def test_separate_servers_with_two_local_updates_per_step(folder: Path, separate: Steps) -> None:
    check(separate, rollouts=4 * 4)
    files = folder / "separate_groups_2.jsonl", folder / "separate_groups_4.jsonl"
    check_checkpoints(files, separate, prompts=4)
    # The second update of a step is relative to the weights before the first, which has moved them.
    assert any(abs(step["actor/ppo_kl"]) > 1e-6 for step in separate)
    assert all(step["timing_s/update_weights"] < 60 for step in separate), "a sync waited for requests that queue"
    for step in separate:
        if step["training/off_policy/trajectory_staleness/max"] == 0:
            assert step["training/rollout_probs_diff_mean"] < 1e-2, "the server has other weights"
