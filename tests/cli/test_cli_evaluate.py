"""``comprl evaluate``: bad input, and the shape of its result. The real thing is in tests/trainer."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from verl_comprl.cli import evaluation_result
from verl_comprl.cli.main import main
from verl_comprl.config.saved import save_config
from verl_comprl.trainer.checkpoint.manifest import write_manifest


def complete(checkpoint: Path) -> Path:
    """Make a checkpoint as plain verl leaves one, which has no list of its files."""
    (checkpoint / "actor").mkdir(parents=True)
    (checkpoint / "actor" / "model.safetensors").touch()
    return checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    config = OmegaConf.create({"comprl": {"experience": False, "arm": "baseline"}, "trainer": {"device": "cpu"}})
    save_config(config, tmp_path / "run")
    return complete(tmp_path / "run" / "global_step_2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--checkpoint", "{run}/global_step_9"], "global_step_9 does not exist; it is a folder RUN/global_step_<N>"),
        (["--checkpoint", "{run}"], "is not a checkpoint folder; its name must be global_step_<N>"),
        (["--checkpoint", "{run}/global_step_2", "--samples", "0"], "--samples 0 must be at least 1"),
        (["--checkpoint", "{run}/global_step_2", "--bank", "b"], "--bank b: the run had no experience; add comprl.ex"),
        (["--checkpoint", "{run}/global_step_2", "comprl.arn=x"], "'comprl.arn=x' cannot be applied to"),
    ],
)
def test_bad_input_is_one_line(checkpoint: Path, capsys: Any, arguments: list[str], message: str) -> None:
    given = [argument.format(run=checkpoint.parent) for argument in arguments]
    assert main(["evaluate", *given]) == 2
    error = capsys.readouterr().err
    assert error.startswith("comprl evaluate: ") and message in error and error.count("\n") == 1


def test_a_checkpoint_on_another_disk_is_one_of_the_run_that_links_to_it(checkpoint: Path, capsys: Any) -> None:
    moved = checkpoint.rename(checkpoint.parent.parent / "large_disk")
    checkpoint.symlink_to(moved)
    assert main(["evaluate", "--checkpoint", str(checkpoint), "--bank", "b"]) == 2
    assert "--bank b: the run had no experience" in capsys.readouterr().err


def test_an_asynchronous_run_is_evaluated_with_the_synchronous_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: Any = {
        "comprl": {"experience": False, "arm": "baseline"},
        "trainer": {
            "device": "cpu",
            "nnodes": 1,
            "n_gpus_per_node": 4,
            "v1": {"trainer_mode": "comprl_separate_async"},
        },
        "actor_rollout_ref": {
            "hybrid_engine": False,
            "actor": {"checkpoint": {"load_contents": ["model", "optimizer", "extra"]}},
            "rollout": {
                "checkpoint_engine": {"backend": "comprl_gloo"},
                "n_gpus_per_node": 8,
                "tensor_model_parallel_size": 8,
                "gpu_memory_utilization": 0.85,
                "val_kwargs": {"n": 2},
            },
        },
        "extractor": {"actor": {"checkpoint": {"load_contents": ["model", "optimizer", "extra"]}}},
    }
    made: Any = OmegaConf.create(config)
    save_config(made, tmp_path)
    complete(tmp_path / "global_step_2")
    ran: list[Any] = []
    monkeypatch.setattr("verl_comprl.train.prepare_environment", lambda: True)
    monkeypatch.setattr("verl_comprl.train.run", lambda config: ran.append(config) or 3)
    assert main(["evaluate", "--checkpoint", str(tmp_path / "global_step_2")]) == 3
    (evaluated,) = ran
    assert not Path(evaluated.trainer.default_local_dir).exists()  # it was refused before anything was written
    assert evaluated.trainer.v1.trainer_mode == "comprl_sync"
    # The engine then has servers of its own, which get their weights directly.
    model = evaluated.actor_rollout_ref
    assert (model.hybrid_engine, model.rollout.checkpoint_engine.backend) == (True, "naive")
    assert (model.rollout.n_gpus_per_node, model.rollout.tensor_model_parallel_size) == (4, 4)
    assert model.rollout.gpu_memory_utilization == 0.6
    assert model.actor.checkpoint.load_contents == evaluated.extractor.actor.checkpoint.load_contents == ["model"]


@pytest.mark.parametrize("given", ["", "/another/bank"])
def test_an_evaluation_reads_a_bank_of_its_own_and_trains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    extractor = {"train": True, "distill": True}
    config: Any = {
        "comprl": {
            "experience": True,
            "initial_bank": "/of/the/run",
            "drain_timeout": 60,
            "extractor": extractor,
            "bank": {"path": str(tmp_path / "bank"), "url": "http://127.0.0.1:6333"},
            "queue": {"folder": str(tmp_path / "queue")},
        },
        "trainer": {"device": "cpu", "v1": {"trainer_mode": "comprl_sync"}},
        "actor_rollout_ref": {
            "hybrid_engine": True,
            "actor": {"checkpoint": {}},
            "rollout": {
                "checkpoint_engine": {"backend": "naive"},
                "gpu_memory_utilization": 0.5,
                "val_kwargs": {"n": 2, "temperature": 1.0},
            },
        },
        "extractor": {"actor": {"checkpoint": {}}},
    }
    made: Any = OmegaConf.create(config)
    save_config(made, tmp_path)
    checkpoint = complete(tmp_path / "global_step_2")
    ran: list[Any] = []
    monkeypatch.setattr("verl_comprl.train.prepare_environment", lambda: True)
    monkeypatch.setattr("verl_comprl.train.run", lambda config: ran.append(config) or 3)
    bank = ["--bank", given] if given else []
    assert main(["evaluate", "--checkpoint", str(checkpoint), "--samples", "4", "--greedy", *bank]) == 3
    ours, folder = ran[0].comprl, Path(ran[0].trainer.default_local_dir)
    assert ours.initial_bank == (given or str(checkpoint / "comprl" / "bank"))
    assert (ours.bank.path, ours.bank.url) == (str(folder / "bank"), "")
    assert ours.queue.folder == str(folder / "queue") and tmp_path not in folder.parents
    assert (ours.extractor.train, ours.extractor.distill, ours.drain_timeout) == (False, False, 0)
    sampling = ran[0].actor_rollout_ref.rollout.val_kwargs
    assert (sampling.n, sampling.temperature) == (8, 0.0)
    assert ran[0].trainer.resume_from_path == str(checkpoint) and ran[0].trainer.val_only


@pytest.mark.parametrize(("code", "kept"), [(130, False), (1, True)])
def test_an_evaluation_that_was_stopped_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kept: bool
) -> None:
    """One that failed leaves the log that its message names."""
    folder = tmp_path / "evaluation"

    def evaluate(config: Any) -> int:
        (folder / "train.log").touch()
        return code

    config: Any = {"trainer": {"device": "cpu", "default_local_dir": str(folder)}}
    monkeypatch.setattr("verl_comprl.cli.evaluate._config", lambda *_: OmegaConf.create(config))
    monkeypatch.setattr("verl_comprl.cli.evaluate.tempfile.mkdtemp", lambda prefix: folder.mkdir() or str(folder))
    monkeypatch.setattr("verl_comprl.train.prepare_environment", lambda: True)
    monkeypatch.setattr("verl_comprl.train.run", evaluate)
    complete(tmp_path / "global_step_2")
    assert main(["evaluate", "--checkpoint", str(tmp_path / "global_step_2")]) == code
    assert folder.exists() == kept


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        ("actor", "global_step_2 has no actor and no extractor any more: a run keeps the models of its latest"),
        ("comprl.json", "global_step_2 is torn: comprl.json is missing"),
        ("complete.json", "global_step_2 is torn: complete.json is missing"),
    ],
)
def test_a_checkpoint_that_cannot_be_loaded_starts_nothing(
    removed: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_config(OmegaConf.create({"comprl": {"experience": True}, "trainer": {"device": "cpu"}}), tmp_path)
    checkpoint, evaluation = complete(tmp_path / "global_step_2"), tmp_path / "evaluation"
    (checkpoint / "comprl" / "bank").mkdir(parents=True)
    (checkpoint / "comprl.json").write_text("{}")
    write_manifest(checkpoint, ["actor", "comprl.json"])
    gone = checkpoint / removed
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    config = OmegaConf.create({"trainer": {"device": "cpu"}})
    monkeypatch.setattr("verl_comprl.cli.evaluate._config", lambda *_: config)
    monkeypatch.setattr("verl_comprl.cli.evaluate.tempfile.mkdtemp", lambda prefix: evaluation.mkdir() or evaluation)
    monkeypatch.setattr("verl_comprl.train.run", lambda config: pytest.fail("it was started"))
    assert main(["evaluate", "--checkpoint", str(checkpoint)]) == 2
    shown = capsys.readouterr().err
    assert message in shown and shown.count("\n") == 1
    assert not evaluation.exists()


def test_a_checkpoint_of_no_run_is_one_line(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "global_step_1").mkdir()
    assert main(["evaluate", "--checkpoint", str(tmp_path / "global_step_1")]) == 2
    assert "config.yaml does not exist: it is written when a run starts" in capsys.readouterr().err


def test_measures_are_nested_by_task_and_arm() -> None:
    metrics = {
        "comprl/eval/success_with": 0.5,
        "comprl/eval/success_with_low": 0.2,
        "comprl/eval/minihack/room/success_with": 0.5,
        "comprl/eval/minihack/room/invalid_rate_without": 0.1,
    }
    assert evaluation_result.arms(metrics) == {
        "average": {"with": {"success": 0.5, "success_low": 0.2}},
        "tasks": {"minihack/room": {"with": {"success": 0.5}, "without": {"invalid_rate": 0.1}}},
    }


def evaluation_of_a_bank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, before: str | None, after: str | None, manifest: str = ""
) -> Path:
    """Let ``comprl evaluate`` find an evaluation that has just ended; returns the checkpoint."""
    bank = tmp_path / "bank"
    bank.mkdir()
    (bank / "manifest.json").write_text(json.dumps({"sha256": {"data/entries.parquet": manifest}}))
    folder, checkpoint = tmp_path / "evaluation", complete(tmp_path / "global_step_2")
    line = {"step": 2, "bank_before": before, "bank": after, "comprl/eval/success_with": 0.5}

    def evaluate(config: Any) -> int:
        (folder / "evaluations.jsonl").write_text(json.dumps(line) + "\n")
        return 0

    config: Any = {
        "comprl": {"experience": True, "arm": "a", "initial_bank": str(bank)},
        "trainer": {"device": "cpu"},
        "actor_rollout_ref": {"rollout": {"val_kwargs": {"temperature": 1.0, "top_p": 1.0, "top_k": -1}}},
    }
    monkeypatch.setattr("verl_comprl.cli.evaluate._config", lambda *_: OmegaConf.create(config))
    monkeypatch.setattr("verl_comprl.cli.evaluate.tempfile.mkdtemp", lambda prefix: folder.mkdir() or str(folder))
    monkeypatch.setattr("verl_comprl.train.prepare_environment", lambda: True)
    monkeypatch.setattr("verl_comprl.train.run", evaluate)
    return checkpoint


def test_a_bank_that_changed_is_an_error_after_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = evaluation_of_a_bank(tmp_path, monkeypatch, before="one", after="two")
    assert main(["evaluate", "--checkpoint", str(checkpoint), "--output", str(tmp_path / "result.json")]) == 2
    printed = capsys.readouterr()
    assert "the evaluation changed its bank: its checksum was one, now it is two" in printed.err
    assert json.loads(printed.out)["average"] == {"with": {"success": 0.5}}
    assert json.loads((tmp_path / "result.json").read_text()) == json.loads(printed.out)


def test_a_bank_of_which_nothing_is_known_is_not_called_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = evaluation_of_a_bank(tmp_path, monkeypatch, before=None, after=None)
    assert main(["evaluate", "--checkpoint", str(checkpoint)]) == 2
    assert "is not known: its manager did not answer" in capsys.readouterr().err


def test_a_snapshot_that_another_library_wrote_is_no_changed_bank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its table has other bytes, and another checksum, than the same entries written now."""
    checkpoint = evaluation_of_a_bank(tmp_path, monkeypatch, before="same", after="same", manifest="other")
    assert main(["evaluate", "--checkpoint", str(checkpoint)]) == 0
    assert json.loads(capsys.readouterr().out)["bank"]["sha256"] == "same"
