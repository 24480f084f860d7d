"""A real run whose extractor diverges at its first update goes on without harm to the actor, the bank and the books."""

from pathlib import Path

import pytest
from running import Run, last_step, read_steps

pytestmark = [pytest.mark.run, pytest.mark.long, pytest.mark.timeout(1800)]

STEPS = 10


@pytest.mark.parametrize("lr", [1.0, 1e30])
def test_an_extractor_that_diverges_costs_its_own_answers_only(folder: Path, lr: float) -> None:
    """Its answers are garbage afterwards, or its server computes log-probs that are no numbers."""
    output = folder / f"lr-{lr:g}"
    run = Run(
        folder,
        f"trainer.total_training_steps={STEPS}",
        "trainer.save_freq=1",
        f"trainer.default_local_dir={output}",
        f"extractor.actor.optim.lr={lr}",
        "comprl.warmup_steps=0",
        "comprl.queue.capacity=1",
        "comprl.extractor.batch_size=4",
    )
    try:
        code = run.process.wait(timeout=900)
    finally:
        run.process.kill()
    assert code == 0, run.text()
    steps = read_steps(output)
    print({k: v for k, v in steps[-1].items() if k.startswith("comprl/")})
    assert last_step(output) == STEPS
