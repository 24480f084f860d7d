"""An extractor whose servers have slots of their own: weights go to them over gloo while they answer."""

import json
from pathlib import Path

import pytest
from lora_settings import lora, tolerance
from running import Run, read_steps, undocumented

from verl_comprl.names import GLOO_ENGINE

pytestmark = [pytest.mark.run, pytest.mark.long, pytest.mark.timeout(1800)]

STEPS = 4


@pytest.mark.parametrize("adapters", [False, True])
def test_servers_apart_get_the_weights_of_their_engine(folder: Path, adapters: bool) -> None:
    """Adapters merged into the weights, as only these pass through a checkpoint engine."""
    run = folder / f"split-{adapters}"
    trained = lora(merge=True) if adapters else []
    sync = "extractor.rollout.checkpoint_engine"
    apart = Run(
        folder,
        f"trainer.default_local_dir={run}",
        f"trainer.total_training_steps={STEPS}",
        "comprl.extractor.placement=split",
        "extractor.rollout.nnodes=1",
        "extractor.rollout.n_gpus_per_node=1",
        f"{sync}.backend={GLOO_ENGINE}",
        f"{sync}.custom_backend_module=verl_comprl.platform.gloo_engine",
        *trained,
        script="probed_run.py",
    )
    try:
        assert apart.process.wait(timeout=1200) == 0, apart.text()[-5000:]
    finally:
        apart.process.kill()
    assert apart.leftovers() == []
    lines = [json.loads(line) for line in apart.probe.read_text().splitlines()]
    extractor = [line for line in lines if line["model"] == "extractor"]
    assert extractor[-1]["version"] > 0, "the extractor was never updated"
    for line in lines:
        assert line["server"] == pytest.approx(line["engine"], abs=tolerance(trained)), line["model"]
    moved = max(abs(a - b) for a, b in zip(extractor[0]["fixed"], extractor[-1]["fixed"], strict=True))
    assert moved > 2 * tolerance(trained)
    steps = read_steps(run)
    assert len(steps) == STEPS and steps[-1]["comprl/extractor/failed"] == 0
    assert undocumented({name for step in steps for name in step}) == []
