"""``comprl export``: models that transformers and peft load, with the weights of the checkpoint."""

import json
import shutil
from errno import EIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from verl_comprl.cli.export.card import write_card
from verl_comprl.cli.export.checkpoint import Checkpoint, find_checkpoint
from verl_comprl.cli.main import main
from verl_comprl.trainer.checkpoint.manifest import write_manifest
from verl_comprl.trainer.checkpoint.reading import UnreadableCheckpoint

MODELS = Path(__file__).parents[2] / "recipes/miniature/models/plain"
EVALUATION = {
    "step": 8,
    "comprl/eval/room/success_with": 0.5,
    "comprl/eval/room/success_with_low": 0.25,
    "comprl/eval/room/success_with_high": 0.75,
    "comprl/eval/room/success_without": 0.125,
}
CONFIG = {
    "actor_rollout_ref": {
        "model": {"path": "Qwen/Qwen2.5-7B-Instruct"},
        "actor": {"optim": {"lr": 1e-6}},
        "rollout": {"n": 8},
    },
    "extractor": {"model": {"path": "/home/someone/models/extractor"}, "actor": {"optim": {"lr": 2e-6}}},
    "comprl": {"arm": "complementary", "extractor": {"train": True, "batch_size": 64}},
    "data": {"train_batch_size": 16},
    "trainer": {"critic_warmup": 0},
}


def load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder)


def save_as_verl_does(model: Any, source: Path, folder: Path, **files: Any) -> None:
    """Write what verl's checkpoint manager writes for a model on one rank."""
    import torch

    folder.mkdir(parents=True)
    shutil.copytree(source, folder / "huggingface", ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(model.state_dict(), folder / "model_world_size_1_rank_0.pt")
    for name, content in {"fsdp_config": {"FSDP_version": 2, "world_size": 1}, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints 4, which has lost its models, and 8, whose weights differ from those of the base."""
    import torch

    folder = tmp_path_factory.mktemp("run")
    for role in ("actor", "extractor"):
        model = load(MODELS / role)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.25)
        save_as_verl_does(model, MODELS / role, folder / "global_step_8" / role)
    for step in (4, 8):
        (folder / f"global_step_{step}" / "comprl" / "bank").mkdir(parents=True)
        (folder / f"global_step_{step}" / "comprl" / "bank" / "manifest.json").write_text(str(step))
    write_manifest(folder / "global_step_8", [])
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    again = dict.fromkeys(EVALUATION, 0.9) | {"step": 8}  # by the run when it was continued: the first counts
    (folder / "evaluations.jsonl").write_text(f"{json.dumps(EVALUATION)}\n{json.dumps(again)}\n")
    return folder


def exported(*arguments: object) -> int:
    return main(["export", *map(str, arguments)])


def test_models_and_bank_of_the_latest_checkpoint(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    assert exported(run_folder, "--output", tmp_path / "out") == 0
    shown = capsys.readouterr()
    report = json.loads(shown.out)
    assert "note" not in shown.err
    assert report["checkpoint"].endswith("global_step_8")
    assert report["written"] == [str(tmp_path / "out" / name) for name in ("actor", "extractor", "bank")]
    assert (tmp_path / "out/bank/manifest.json").read_text() == "8"
    for role in ("actor", "extractor"):
        base, found = load(MODELS / role).state_dict(), load(tmp_path / "out" / role).state_dict()
        assert base.keys() == found.keys()
        for name, weights in base.items():
            torch.testing.assert_close(found[name].float(), (weights + 0.25).bfloat16().float())
        assert not list((tmp_path / "out" / role).glob("*.pt"))
        assert len({file.stat().st_mode for file in (tmp_path / "out" / role).iterdir()}) == 1, "as the umask gives"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_the_card_says_what_the_model_is(run_folder: Path, tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    exported(run_folder, "--output", tmp_path / "out")
    cards: Any = [ModelCard.load(tmp_path / "out" / role / "README.md") for role in ("actor", "extractor")]
    actor, extractor = cards
    assert actor.data.base_model == "Qwen/Qwen2.5-7B-Instruct" and actor.data.library_name == "transformers"
    assert "complementary-rl" in (actor.data.tags or [])
    assert "| room | 50% (25% to 75%) | 12% |" in actor.text and "| learning rate | 1e-06 |" in actor.text
    assert extractor.data.base_model is None and "someone" not in extractor.text  # a path of this machine
    assert "| samples per update | 64 |" in extractor.text
    both = "Actor and extractor were trained in one run around a shared bank of experience."
    assert all(both in card.text and "| trained | yes |" in card.text for card in cards)


def card(folder: Path, role: str, **settings: object) -> str:
    """Return the model card of a run with these settings."""
    config = OmegaConf.create(CONFIG)
    for name, value in settings.items():
        OmegaConf.update(config, name.replace("__", "."), value)
    folder.mkdir()
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(config))
    write_card(folder, Checkpoint(folder / "global_step_8"), role, adapter=False)
    return (folder / "README.md").read_text()


def test_the_card_of_a_run_without_experience_names_none(tmp_path: Path) -> None:
    text = card(tmp_path / "run", "actor", comprl__experience=False, comprl__arm="baseline")
    assert "# Actor of a run without experience, step 8" in text and "| trained | yes |" in text
    assert "It acts in environments. The actor was trained, without experience and extractor." in text
    assert "complementary-rl" not in text and "bank" not in text and "entry" not in text


def test_the_card_of_an_actor_that_did_not_learn_says_so(tmp_path: Path) -> None:
    warmup = {"trainer__critic_warmup": 1_000_000_000}
    actor, extractor = (card(tmp_path / role, role, **warmup) for role in ("actor", "extractor"))
    for text in (actor, extractor):
        assert "The actor was not trained: its weights are the base's; the extractor was, in one run" in text
    assert "| trained | no |" in actor and "learning rate" not in actor
    assert "| trained | yes |" in extractor and "| learning rate | 2e-06 |" in extractor


@pytest.mark.parametrize(
    ("backend", "writer"),
    [
        ("own", "a model that was not trained"),
        ("endpoint", "a model behind an endpoint, which was not trained"),
        ("actor", "the actor itself, with its present weights"),
    ],
)
def test_the_card_of_an_extractor_that_did_not_learn_says_so(backend: str, writer: str, tmp_path: Path) -> None:
    settings = {"comprl__extractor__train": False, "comprl__extractor__backend": backend}
    text = card(tmp_path / "actor", "actor", **settings)
    assert f"The actor was trained. Its experience came from a bank, and the extractor was {writer}." in text
    assert "| trained | yes |" in text and "# Actor of a Complementary RL run" in text
    text = card(tmp_path / "extractor", "extractor", **settings)
    assert "| trained | no |" in text and "samples per update" not in text and "learning rate" not in text


def test_the_card_of_a_fixed_bank_says_that_nobody_wrote_it(tmp_path: Path) -> None:
    fixed = {"comprl__extractor__train": False, "comprl__extractor__distill": False}
    text = card(tmp_path / "run", "extractor", **fixed)
    assert "It answers the actor's questions from an entry." in text
    assert "The bank was given and did not grow." in text


def test_the_card_of_a_checkpoint_without_its_run_claims_nothing(tmp_path: Path) -> None:
    write_card(tmp_path, Checkpoint(tmp_path / "global_step_8"), "actor", adapter=False)
    text = (tmp_path / "README.md").read_text()
    assert "It is the actor of a run whose settings are not known." in text and "trained" not in text.split("##")[0]
    assert "# Actor of a run, step 8" in text and "complementary-rl" not in text


def test_one_part_of_another_step(run_folder: Path, tmp_path: Path) -> None:
    assert exported(run_folder, "--step", 4, "--only", "bank", "--output", tmp_path / "out") == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["bank"]
    assert (tmp_path / "out/bank/manifest.json").read_text() == "4"


def test_models_that_a_checkpoint_has_no_more_are_noted(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exported(run_folder, "--step", 4, "--output", tmp_path / "out") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["written"] == [str(tmp_path / "out/bank")]
    assert shown.err.startswith(
        "note: global_step_4 has no actor and no extractor any more: a run keeps the models of "
    )
    baseline = tmp_path / "baseline"
    (baseline / "global_step_4/comprl/bank").mkdir(parents=True)
    (baseline / "config.yaml").write_text(yaml.safe_dump(CONFIG | {"comprl": {"experience": False}}))
    exported(baseline, "--step", 4, "--output", tmp_path / "other")
    assert capsys.readouterr().err.startswith("note: global_step_4 has no actor any more: ")
    exported(baseline, "--step", 4, "--only", "bank", "--output", tmp_path / "bank")
    assert capsys.readouterr().err == ""


def test_an_adapter_is_exported_apart_from_its_base(tmp_path: Path) -> None:
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model

    base = load(MODELS / "actor")
    targets = ["q_proj", "v_proj"]
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=targets, task_type="CAUSAL_LM"))
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            new = torch.randn_like(parameter) if "lora_" in name else parameter
            parameter.copy_(new.bfloat16())  # what is lost by the export is lost before
    meta = {"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM"}
    save_as_verl_does(model, MODELS / "actor", tmp_path / "run/global_step_1/actor", lora_train_meta=meta)
    assert exported(tmp_path / "run/global_step_1", "--output", tmp_path / "out") == 0
    folder = tmp_path / "out/actor"
    assert "lora_adapter" in (folder / "README.md").read_text()
    loaded = PeftModel.from_pretrained(load(folder).float(), folder / "lora_adapter")
    tokens = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits)
        assert not torch.allclose(loaded(tokens).logits, load(folder).float()(tokens).logits)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none"], "none does not exist"),
        (["run", "--step", "5"], "has no checkpoint of step 5; it has global_step_4, global_step_8"),
        (["run/global_step_4", "--step", "8"], "--step 8, but"),
        (["run", "--step", "4", "--only", "actor"], "global_step_4 has no actor"),
        (["run/bank"], "bank has no checkpoint\n"),
    ],
)
def test_a_checkpoint_that_is_not_there_is_named(
    arguments: list[str], message: str, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_folder / "bank").mkdir(exist_ok=True)
    place, *more = arguments
    folder = run_folder.parent / place.replace("run", run_folder.name)
    assert exported(folder, *more, "--output", tmp_path / "out") == 2
    shown = capsys.readouterr()
    assert message in shown.err and shown.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_empty_is_left_alone(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("")
    assert exported(run_folder, "--output", tmp_path) == 2
    assert "must be a folder that is empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_checkpoint_of_another_engine_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run/global_step_1/actor/dist_ckpt").mkdir(parents=True)
    (tmp_path / "run/global_step_1/actor/dist_ckpt/__0_0.distcp").touch()
    assert exported(tmp_path / "run", "--output", tmp_path / "out") == 2
    assert "python -m verl.model_merger" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_latest_checkpoint_is_the_one_of_the_highest_step(tmp_path: Path) -> None:
    for step in (9, 10, 100):
        (tmp_path / f"global_step_{step}" / ("actor" if step < 100 else "comprl")).mkdir(parents=True)
        if step < 100:
            (tmp_path / f"global_step_{step}" / "actor" / "model.safetensors").touch()
    assert find_checkpoint(tmp_path, None).step == 10
    (tmp_path / "global_step_10" / "complete.json").write_text('{"files": {"data.pt": 8}}')  # torn
    assert find_checkpoint(tmp_path, None).step == 9
    (tmp_path / "global_step_10" / "complete.json").unlink()
    (tmp_path / "global_step_10" / "given_up").touch()
    assert find_checkpoint(tmp_path, None).step == 9
    assert find_checkpoint(tmp_path, 100).step == 100


def test_an_earlier_checkpoint_is_not_exported_for_a_latest_one_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (9, 10):
        (tmp_path / f"global_step_{step}" / "actor").mkdir(parents=True)
        (tmp_path / f"global_step_{step}" / "actor" / "model.safetensors").touch()
    unreadable, read_bytes = tmp_path / "global_step_10" / "complete.json", Path.read_bytes

    def read(self: Path) -> bytes:
        if self == unreadable:
            raise OSError(EIO, "Input/output error", str(self))
        return read_bytes(self)

    monkeypatch.setattr(Path, "read_bytes", read)
    monkeypatch.setattr("verl_comprl.files.time.sleep", lambda seconds: None)
    with pytest.raises(OSError, match=f"{unreadable} cannot be read at present"):
        find_checkpoint(tmp_path, None)
    assert find_checkpoint(tmp_path, 9).step == 9


def test_a_checkpoint_on_another_disk_is_one_of_the_run_that_links_to_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for step in (9, 10):
        (run / f"global_step_{step}" / "actor").mkdir(parents=True)
        (run / f"global_step_{step}" / "actor" / "model.safetensors").touch()
    linked = run / "global_step_10"
    moved = linked.rename(tmp_path / "ten")
    linked.symlink_to(moved)
    (run / "config.yaml").write_text("{}")
    assert find_checkpoint(linked, None).folder == linked == find_checkpoint(run, None).folder
    moved.rename(tmp_path / "away")
    with pytest.raises(UnreadableCheckpoint, match=f"global_step_10 leads to {moved}, which is not there"):
        find_checkpoint(run, None)
    assert find_checkpoint(run, 9).step == 9
    linked.rename(run / "global_step_8")
    assert find_checkpoint(run, None).step == 9, "an earlier one does not matter"


def test_a_link_to_a_checkpoint_of_a_run_is_that_runs(tmp_path: Path) -> None:
    checkpoint = tmp_path / "run" / "global_step_9"
    checkpoint.mkdir(parents=True)
    (checkpoint.parent / "config.yaml").write_text("{}")
    (best := tmp_path / "best").mkdir()
    (best / "global_step_9").symlink_to(checkpoint)
    assert find_checkpoint(best / "global_step_9", None).folder == checkpoint
