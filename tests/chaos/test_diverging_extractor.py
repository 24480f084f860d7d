"""A real run whose extractor diverges at its first update: that costs what it would have written, and nothing else."""

import math
from pathlib import Path

import pytest
from books import problems
from running import Run, comprl_bank, last_step, read_steps

pytestmark = [pytest.mark.run, pytest.mark.long, pytest.mark.timeout(1800)]

STEPS = 10


def test_an_extractor_that_diverges_costs_its_own_answers_only(folder: Path) -> None:
    """Its answers are garbage then, and the gradients of its further updates are no numbers."""
    run = Run(
        folder,
        f"trainer.total_training_steps={STEPS}",
        "trainer.save_freq=5",
        "extractor.actor.optim.lr=1e30",
        "comprl.warmup_steps=0",
        "comprl.queue.capacity=1",
        "comprl.merge.every=2",
    )
    try:
        code = run.process.wait(timeout=900)
    finally:
        run.process.kill()
    assert code == 0, run.text()
    assert run.processes() == []

    steps = read_steps(folder / "run")
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    assert all(step["actor/grad_norm"] is not None and math.isfinite(step["actor/grad_norm"]) for step in steps)
    failed = [value for step in steps for name, value in step.items() if name.startswith("comprl/rollouts/failed/")]
    assert failed and set(failed) == {0}
    first, *_, last = (step for step in steps if step["comprl/extractor/updates"] > 0)
    unreadable = [step.get("comprl/distillations/unreadable", 0.0) for step in (first, last)]
    assert unreadable == sorted(set(unreadable)) and last["comprl/parse_failures/no_answer"] > 0
    assert last["comprl/extractor/skipped"] > 0  # gradients
    assert last["comprl/queue/spilled"] > 0  # the queue was full
    assert last["comprl/merge/passes"] > first["comprl/merge/passes"]  # answered with garbage, as all else

    assert last_step(folder / "run") == STEPS
    assert problems(folder / "run") == []
    assert comprl_bank(folder, "verify").returncode == 0
    listed = comprl_bank(folder, "list", "--limit", "0", "--json").stdout.splitlines()
    assert len(listed) == last["comprl/bank/size"]
