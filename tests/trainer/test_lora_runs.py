"""LoRA for both models: adapters reach the servers, are saved, resumed and can be used elsewhere."""

import json
from pathlib import Path

import pytest
import torch
from probes import FIXED, PROMPT, read_probes
from running import Run, last_step

pytestmark = [pytest.mark.run, pytest.mark.long, pytest.mark.timeout(1800)]

RANK = 8


def lora(*, merge: bool) -> list[str]:
    """Overrides; adapters need a higher learning rate than full weights."""
    overrides = []
    for model in ("actor_rollout_ref", "extractor"):
        overrides += [f"{model}.model.lora_rank={RANK}", f"{model}.model.lora_alpha=16"]
        overrides += [f"{model}.model.lora.merge={str(merge).lower()}", f"{model}.rollout.load_format=safetensors"]
        overrides += [f"{model}.actor.optim.lr=0.01"]
    return overrides


def log_probs(model: torch.nn.Module) -> list[float]:
    """Log-probs of the probe's fixed tokens after its prompt, by transformers alone."""
    ids = torch.tensor([[*PROMPT, *FIXED]])
    with torch.no_grad():
        scores = torch.log_softmax(model(ids).logits[0].float(), dim=-1)
    return [float(scores[len(PROMPT) - 1 + n, token]) for n, token in enumerate(FIXED)]


@pytest.mark.parametrize("merge", [False, True])
def test_both_models_learn_as_adapters_and_resume(folder: Path, merge: bool) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    run = folder / f"lora-{merge}"
    common = [*lora(merge=merge), f"trainer.default_local_dir={run}", "trainer.save_freq=4"]
    first = Run(folder, *common, "trainer.total_training_steps=4", script="probed_run.py")
    try:
        assert first.process.wait(timeout=900) == 0, first.text()[-5000:]
    finally:
        first.process.kill()
    assert last_step(run) == 4
    lines = {model: read_probes(first.probe, model) for model in ("actor", "extractor")}
    first.probe.unlink()
    for model, folder_of in (("actor", "actor_rollout_ref"), ("extractor", "extractor")):
        for line in lines[model]:
            assert line["server"] == pytest.approx(line["engine"], abs=1e-4), (model, line["version"])
        base = AutoModelForCausalLM.from_pretrained(folder / "models" / model)
        untrained = log_probs(base)
        last = lines[model][-1]
        assert last["version"] > 0, f"{folder_of} was never updated"
        moved = max(abs(a - b) for a, b in zip(untrained, last["fixed"], strict=True))
        assert moved > 1e-3, f"{model} still computes as the model without an adapter"
        if model == "actor":  # the extractor may have been updated after the checkpoint
            adapter = run / "global_step_4" / model / "lora_adapter"
            weights = log_probs(PeftModel.from_pretrained(base, str(adapter)))
            assert weights == pytest.approx(last["fixed"], abs=1e-4)

    # Without learning the continuation computes what was saved.
    still = [
        "actor_rollout_ref.actor.optim.lr=0",
        "extractor.actor.optim.lr=0",
        "comprl.extractor.train=false",
        "comprl.arm=still",
        "trainer.resume_mode=resume_path",  # another arm does not continue a run by itself
        f"trainer.resume_from_path={run / 'global_step_4'}",
    ]
    second = Run(folder, *common, *still, "trainer.total_training_steps=5", script="probed_run.py")
    try:
        assert second.process.wait(timeout=900) == 0, second.text()[-5000:]
    finally:
        second.process.kill()
    (actor,) = read_probes(second.probe, "actor")
    assert actor["fixed"] == pytest.approx(lines["actor"][-1]["fixed"], abs=1e-5)
    (extractor,) = read_probes(second.probe, "extractor")
    saved = json.loads((run / "global_step_4" / "comprl.json").read_text())
    assert extractor["version"] == saved["extractor_weight_version"]
    same = [line for line in lines["extractor"] if line["version"] == extractor["version"]]  # none, if updated later
    assert all(extractor["fixed"] == pytest.approx(line["fixed"], abs=1e-5) for line in same)
    for line in (actor, extractor):
        assert line["server"] == pytest.approx(line["engine"], abs=1e-4)
    assert second.processes() == []
