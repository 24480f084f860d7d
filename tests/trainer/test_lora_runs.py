"""LoRA for both models: adapters reach the servers, are saved, resumed and can be used elsewhere."""

import json
from pathlib import Path

import pytest
import torch
from probes import FIXED, PROMPT, read_probes
from running import Run, last_step

from verl_comprl.cli.main import main

pytestmark = [pytest.mark.run, pytest.mark.timeout(1800)]

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


def distance(one: list[float], other: list[float]) -> float:
    """The largest difference."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def finished(folder: Path, *overrides: str) -> Run:
    """A probed run that has ended well."""
    run = Run(folder, *overrides, script="probed_run.py")
    try:
        assert run.process.wait(timeout=900) == 0, run.text()[-5000:]
    finally:
        run.process.kill()
    return run


def with_adapter(base: Path, adapter: Path) -> list[float]:
    """Log-probs of a model with an adapter of another folder."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return log_probs(PeftModel.from_pretrained(model, str(adapter)))


@pytest.mark.parametrize("merge", [False, pytest.param(True, marks=pytest.mark.long)])
def test_both_models_learn_as_adapters_and_resume(folder: Path, merge: bool) -> None:
    from transformers import AutoModelForCausalLM

    run = folder / f"lora-{merge}"
    saved = run / "global_step_4"
    common = [*lora(merge=merge), f"trainer.default_local_dir={run}", "trainer.save_freq=4"]
    first = finished(folder, *common, "trainer.total_training_steps=4")
    assert last_step(run) == 4
    lines = {model: read_probes(first.probe, model) for model in ("actor", "extractor")}
    first.probe.unlink()
    untrained = {
        model: log_probs(AutoModelForCausalLM.from_pretrained(folder / "models" / model, dtype=torch.float32))
        for model in lines
    }
    for model, measured in lines.items():
        for line in measured:
            assert line["server"] == pytest.approx(line["engine"], abs=1e-4), (model, line["version"])
        assert measured[-1]["version"] > 0, f"{model} was never updated"
        assert distance(untrained[model], measured[-1]["fixed"]) > 1e-3, f"{model} computes as without an adapter"

    # Without learning the continuation computes what was saved.
    still = [
        "actor_rollout_ref.actor.optim.lr=0",
        "extractor.actor.optim.lr=0",
        "comprl.extractor.train=false",
        "comprl.arm=still",
        "trainer.resume_mode=resume_path",  # another arm does not continue a run by itself
        f"trainer.resume_from_path={saved}",
    ]
    second = finished(folder, *common, *still, "trainer.total_training_steps=5")
    (actor,), (extractor,) = (read_probes(second.probe, model) for model in lines)
    assert actor["fixed"] == pytest.approx(lines["actor"][-1]["fixed"], abs=1e-5)
    assert extractor["version"] == json.loads((saved / "comprl.json").read_text())["extractor_weight_version"]
    same = [line for line in lines["extractor"] if line["version"] == extractor["version"]]  # none, if updated later
    assert all(extractor["fixed"] == pytest.approx(line["fixed"], abs=1e-5) for line in same)

    # So do the saved adapters on the base model; and, but for what bfloat16 loses, base and adapter as exported.
    output = folder / f"exported-{merge}"
    assert main(["export", str(saved), "--output", str(output)]) == 0
    for line in (actor, extractor):
        model, trained = line["model"], line["fixed"]
        assert line["server"] == pytest.approx(line["engine"], abs=1e-4)
        assert distance(untrained[model], trained) > 1e-3
        adapter = saved / model / "lora_adapter"
        assert with_adapter(folder / "models" / model, adapter) == pytest.approx(trained, abs=1e-4), model
        exported = with_adapter(output / model, output / model / "lora_adapter")
        assert distance(exported, trained) < distance(untrained[model], trained) / 4, model
