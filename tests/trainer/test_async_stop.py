"""SIGTERM to real runs with verl's asynchronous trainers, in the middle of a step; the next start continues.

Two starts each. ``separate_async`` also with one update between two weight syncs.
"""

import time
from pathlib import Path
from typing import NamedTuple

import pytest
from arm_settings import AHEAD, SEPARATE
from interrupted_run import STEP
from running import START_SECONDS, Run, check_record, last_step, read_steps, undocumented

from verl_comprl.trainer.checkpoint.folders import CheckpointFolders

pytestmark = [pytest.mark.run, pytest.mark.long, pytest.mark.timeout(3000)]

STOP_SECONDS = 120
"""For noticing the signal, which takes one poll, a checkpoint and the end of all processes, on two shared cores."""


class Case(NamedTuple):
    overrides: list[str]
    rollouts: int
    """In a step."""
    counts: bool = False
    """Whether the step of the signal has been trained in part, and so counts."""


CASES = {
    "colocate": Case(AHEAD, rollouts=2 * 4),
    # One update per weight sync: the batch is one mini-batch.
    "separate-one-update": Case(["shared/trainer=separate_async"], rollouts=2 * 4),
    "separate-two-updates": Case(SEPARATE, rollouts=4 * 4, counts=True),
}


@pytest.mark.parametrize("name", CASES)
def test_a_signal_while_rollouts_are_awaited_leaves_a_checkpoint_from_which_the_run_continues(
    folder: Path, initial_bank: Path, name: str
) -> None:
    case, run = CASES[name], folder / f"stopped_{name}"
    common = [*case.overrides, "comprl.warmup_steps=0", "actor_rollout_ref.rollout.n=4", "comprl.drain_timeout=0"]
    common += [f"comprl.initial_bank={initial_bank}", f"trainer.default_local_dir={run}"]
    stopped = STEP if case.counts else STEP - 1
    left = stop(folder, common)
    assert f"stopped after step {stopped}; checkpoint in {run / f'global_step_{stopped}'}" in left.text()
    checkpoint = CheckpointFolders(run).latest()  # a complete one: every file of its list
    assert checkpoint is not None and checkpoint.name == f"global_step_{stopped}" and last_step(run) == stopped
    assert {"actor", "extractor", "comprl", "transfer_queue"} <= {path.name for path in checkpoint.iterdir()}
    # A step of which only some updates were made has no metrics.
    assert [step["step"] for step in read_steps(run)] == [1, 2]

    again = Run(folder, *common, f"trainer.total_training_steps={stopped + 2}")
    try:
        assert again.process.wait(timeout=2 * START_SECONDS) == 0, again.text()
        assert again.leftovers() == []
    finally:
        again.process.kill()
    steps = read_steps(run)
    assert [step["step"] for step in steps] == [1, 2, stopped + 1, stopped + 2]
    assert undocumented({metric for step in steps for metric in step}) == []
    for step in steps:
        assert step["comprl/guided/rollouts"] + step["comprl/free/rollouts"] == case.rollouts
        # What was left in flight is submitted once, not on top of a new batch: nothing gets old.
        assert step["training/off_policy/trajectory_staleness/max"] < 4
        assert step["timing_s/update_weights"] < 60, "a sync waited for requests that queue"
        if step["training/off_policy/trajectory_staleness/max"] == 0:
            assert step["training/rollout_probs_diff_mean"] < 1e-2, "the server has other weights"
    if not case.counts:
        check_record(run)


def stop(folder: Path, common: list[str]) -> Run:
    """Run until the signal has ended the run; checks how."""
    (folder / "interrupted_run.jsonl").unlink(missing_ok=True)  # of the run before
    run = Run(folder, *common, "trainer.total_training_steps=1000", script="interrupted_run.py")
    try:
        run.wait_until(run.probe.exists)
        code = run.process.wait(timeout=5 * STOP_SECONDS)
        seconds = time.time() - float(run.probe.read_text())
    finally:
        run.process.kill()
    assert code == 130, run.text()
    assert seconds < STOP_SECONDS
    assert run.leftovers() == []
    return run
