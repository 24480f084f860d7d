"""LoRA for both models: adapters reach the servers, are saved, resumed and can be used elsewhere."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lora_settings import lora, tolerance
from probes import FIXED, PROMPT, read_probes
from running import Run, last_step

from verl_comprl.cli.main import main

pytestmark = [pytest.mark.run, pytest.mark.timeout(1800)]

STEPS = 5
MODELS = ("actor", "extractor")

Measured = dict[str, list[dict[str, Any]]]
Trained = tuple[Path, list[str], Measured, Measured]
"""Folder of a run, its overrides, and what was measured of each model after the steps and in their checkpoints."""


def log_probs(model: torch.nn.Module) -> list[float]:
    """Log-probs of the probe's fixed tokens after its prompt, by transformers alone."""
    ids = torch.tensor([[*PROMPT, *FIXED]])
    with torch.no_grad():
        scores = torch.log_softmax(model(ids).logits[0].float(), dim=-1)
    return [float(scores[len(PROMPT) - 1 + n, token]) for n, token in enumerate(FIXED)]


def distance(one: list[float], other: list[float]) -> float:
    """The largest difference."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def finished(folder: Path, *overrides: str) -> Run:
    """A probed run that has ended well."""
    run = Run(folder, *overrides, script="probed_run.py")
    try:
        assert run.process.wait(timeout=900) == 0, run.text()[-5000:]
        assert run.leftovers() == []
    finally:
        run.process.kill()
    return run


def with_adapter(base: Path, adapter: Path, read_as: torch.dtype = torch.float32) -> list[float]:
    """Log-probs of a model, its weights rounded to `read_as`, with an adapter of another folder; in float32."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=read_as).float()
    return log_probs(PeftModel.from_pretrained(model, str(adapter)))


@pytest.fixture(scope="module", params=[False, pytest.param(True, marks=pytest.mark.long)])
def trained(folder: Path, request: pytest.FixtureRequest) -> Trained:
    """A run of both models as adapters, which the servers get as they are or merged into the weights."""
    run = folder / f"lora-{request.param}"
    overrides = [*lora(merge=request.param), f"trainer.default_local_dir={run}", "trainer.save_freq=1"]
    done = finished(folder, *overrides, f"trainer.total_training_steps={STEPS}")
    after, saved = (
        {model: read_probes(file, model) for model in MODELS} for file in (done.probe, in_checkpoints(done))
    )
    return run, overrides, after, saved


def in_checkpoints(run: Run) -> Path:
    return run.probe.with_suffix(".saved")


def untrained(folder: Path, model: str) -> list[float]:
    from transformers import AutoModelForCausalLM

    return log_probs(AutoModelForCausalLM.from_pretrained(folder / "models" / model, dtype=torch.float32))


@pytest.mark.parametrize("model", MODELS)
def test_adapters_are_learned_and_reach_the_servers(folder: Path, trained: Trained, model: str) -> None:
    measured = trained[2][model]
    assert len(measured) == STEPS
    for line in measured:
        assert line["server"] == pytest.approx(line["engine"], abs=tolerance(trained[1])), line["version"]
    assert measured[-1]["version"] > 0, f"{model} was never updated"
    moved = distance(untrained(folder, model), measured[-1]["fixed"])
    assert moved > 2 * tolerance(trained[1]), f"{model} computes as without an adapter"


@pytest.mark.parametrize("model", MODELS)
def test_an_exported_adapter_computes_what_was_trained(
    folder: Path, tmp_path: Path, trained: Trained, model: str
) -> None:
    """On the model that was trained as in the run; on its export as on that model rounded to bfloat16."""
    run, line = trained[0], trained[3][model][-1]
    saved = run / f"global_step_{STEPS}"
    assert line["version"] == version_of(saved, model) > 0
    assert main(["export", str(saved), "--only", model, "--output", str(tmp_path / "out")]) == 0
    base, exported = folder / "models" / model, tmp_path / "out" / model
    adapter, moved = exported / "lora_adapter", distance(untrained(folder, model), line["fixed"])
    assert distance(with_adapter(base, adapter), line["fixed"]) < moved / 50
    assert with_adapter(exported, adapter) == pytest.approx(with_adapter(base, adapter, torch.bfloat16), abs=1e-4)


def version_of(checkpoint: Path, model: str) -> int:
    """Version of a model's weights in a checkpoint; the actor's is the step."""
    saved = json.loads((checkpoint / "comprl.json").read_text())
    return saved["step"] if model == "actor" else saved["extractor_weight_version"]


@pytest.mark.long
def test_a_resumed_run_starts_with_its_adapters(folder: Path, trained: Trained) -> None:
    run, overrides, _, lines = trained
    again = finished(folder, *overrides, f"trainer.total_training_steps={STEPS + 1}")
    assert last_step(run) == STEPS + 1
    (actor,), (extractor,) = (read_probes(again.probe.with_suffix(".start"), model) for model in MODELS)
    assert actor["fixed"] == pytest.approx(lines["actor"][-1]["fixed"], abs=1e-5)
    assert extractor["version"] == version_of(run / f"global_step_{STEPS}", "extractor")
    assert extractor["fixed"] == pytest.approx(lines["extractor"][-1]["fixed"], abs=1e-5)
    for model in MODELS:
        for line in read_probes(again.probe, model):
            assert line["server"] == pytest.approx(line["engine"], abs=tolerance(overrides)), (model, line["version"])
