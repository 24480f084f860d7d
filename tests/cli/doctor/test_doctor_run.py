"""``comprl doctor`` with the arguments of a run: settings, folder, device slots."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from verl_comprl.cli.doctor import checks, run_settings
from verl_comprl.cli.doctor.finding import Problem
from verl_comprl.cli.doctor.setup import Setup
from verl_comprl.cli.main import main
from verl_comprl.trainer.run_folder.lock import lock_run
from verl_comprl.training import complete_config

RECIPES = Path(__file__).parents[3] / "recipes"


def test_too_few_slots() -> None:
    setup = Setup(("comprl.extractor.n_gpus_per_node=1", "trainer.n_gpus_per_node=2", "ray_kwargs.ray_init.num_gpus=2"))
    setup.checked = setup.config
    complete_config(setup.checked)
    with pytest.raises(Problem) as caught:
        run_settings.check_slots(setup)
    assert "Ray has 2 device slots (GPU), but 3 are needed" in str(caught.value) and caught.value.remedy


def test_bad_model_path(doctor: Any) -> None:
    finding = doctor("settings", "actor_rollout_ref.model.path=/no/such/model")
    assert finding["status"] == "failed"
    assert "actor_rollout_ref.model.path=/no/such/model has no config.json" in finding["message"]


@pytest.fixture
def tasks_and_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Arguments of a run that lack the sizes of micro-batches."""
    tasks, models = tmp_path / "tasks.parquet", RECIPES / "miniature/models/plain"
    assert main(["data", "vaults", "--split", "train", "--count", "16", "--output", str(tasks)]) == 0
    capsys.readouterr()
    files = [f"data.train_files={tasks}", f"data.val_files={tasks}", "data.train_batch_size=16"]
    files.append("actor_rollout_ref.rollout.tensor_model_parallel_size=1")  # the model has three attention heads
    return [*files, f"actor_rollout_ref.model.path={models}/actor", f"extractor.model.path={models}/extractor"]


def test_what_verl_refuses_is_said_with_its_reason(doctor: Any, tasks_and_models: list[str]) -> None:
    finding = doctor("settings", *tasks_and_models)
    assert finding["status"] == "failed" and finding["remedy"] and "micro_batch_size_per_gpu" in finding["message"]


@pytest.fixture
def good_run(tasks_and_models: list[str]) -> list[str]:
    sizes = [f"{model}.actor.use_dynamic_bsz=true" for model in ("actor_rollout_ref", "extractor")]
    return [*tasks_and_models, *sizes, "trainer.n_gpus_per_node=2"]


Findings = dict[str, dict[str, str]]


@pytest.fixture
def run_checks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Findings]:
    """Make the checks of a run in the doctor's own order, so that each has what those before it have found."""
    needed = ("disk", "bank", "settings", "folder", "slots")
    monkeypatch.setattr(checks, "CHECKS", {name: check for name, check in checks.CHECKS.items() if name in needed})
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def run(*arguments: str) -> Findings:
        code = main(["doctor", "--json", *arguments])
        findings = {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
        assert set(findings) == set(needed)
        assert all(finding["remedy"] for finding in findings.values() if finding["status"] not in ("ok", "skipped"))
        assert code == int(any(finding["status"] == "failed" for finding in findings.values()))
        return findings

    return run


def test_a_good_run_has_every_check_made(
    run_checks: Callable[..., Findings], good_run: list[str], tmp_path: Path
) -> None:
    places = (f"trainer.default_local_dir={tmp_path}/run", f"comprl.bank.path={tmp_path}/bank")
    found = run_checks(*good_run, *places)
    assert {name: finding["status"] for name, finding in found.items()} == dict.fromkeys(found, "ok")
    assert found["folder"]["message"] == f"{tmp_path}/run has no run yet"
    assert found["bank"]["message"] == f"{tmp_path}/bank has no bank yet, the run makes it"
    assert found["slots"]["message"] == "3 of 3 device slots are needed"  # two for the actor, one for the extractor


def test_a_good_run_on_a_machine_with_too_few_slots(
    run_checks: Callable[..., Findings], good_run: list[str], tmp_path: Path
) -> None:
    places = (f"trainer.default_local_dir={tmp_path}/run", f"comprl.bank.path={tmp_path}/bank")
    found = run_checks(*good_run, *places, "ray_kwargs.ray_init.num_gpus=2")
    slots = found.pop("slots")
    assert slots["status"] == "failed" and "Ray has 2 device slots (GPU), but 3 are needed" in slots["message"]
    assert {finding["status"] for finding in found.values()} == {"ok"}


def test_what_verl_prints_is_not_in_the_output(
    doctor: Any, good_run: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor("settings", *good_run)["message"] == "allowed, with models, data and environments"
    assert main(["doctor", *good_run]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ok    settings: allowed, with models, data and environments",
        "All checks passed.",
    ]
    monkeypatch.setenv("COMPRL_VERBOSE", "1")
    assert main(["doctor", "--json", *good_run]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["ok"] and "validate_config" in printed.err


def test_a_model_that_is_not_on_this_machine_is_a_warning(doctor: Any, good_run: list[str]) -> None:
    finding = doctor("settings", *good_run, "actor_rollout_ref.model.path=nowhere")
    assert finding["status"] == "warning" and finding["remedy"].startswith("hf download nowhere")
    assert finding["message"].endswith("the run loads it from the hub: actor_rollout_ref.model.path=nowhere")
    unused = doctor("settings", *good_run, "extractor.model.path=nowhere", "arm=baseline")
    assert unused["status"] == "ok"


def test_a_learning_rate_that_is_no_number_is_refused(doctor: Any, good_run: list[str]) -> None:
    finding = doctor("settings", *good_run, "actor_rollout_ref.actor.optim.lr=fast")
    assert finding["status"] == "failed" and "actor_rollout_ref.actor.optim.lr='fast' is not" in finding["message"]


def test_a_recipe_whose_folders_are_not_named(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMPRL_RUN", raising=False)
    recipe = ("--config-dir", str(RECIPES), "--config-name", "minihack_small/cpu")
    finding = doctor("disk", *recipe)
    assert finding["status"] == "failed" and finding["remedy"] == "export COMPRL_RUN=…"
    assert "\n" not in finding["message"]
    assert doctor("settings", *recipe)["remedy"].startswith("export COMPRL_")
    assert doctor("bank", *recipe)["message"] == "not known: the settings are wrong"


def test_arguments_that_do_not_fit_the_config(doctor: Any) -> None:
    finding = doctor("settings", "trainer.no_such_key=1")
    assert finding["status"] == "failed" and "no_such_key" in finding["message"]


def test_a_folder_in_which_another_run_trains(tmp_path: Path) -> None:
    def check() -> str:
        config = OmegaConf.create({"trainer": {"default_local_dir": str(tmp_path)}})
        return run_settings.check_run_folder(Setup(checked=config))

    assert check() == f"{tmp_path} has no run yet" and not list(tmp_path.iterdir())
    lock = lock_run(tmp_path, tell=print)
    assert lock is not None
    with pytest.raises(Problem, match="already open in this process") as found:
        check()
    assert "trainer.default_local_dir=OTHER_FOLDER" in found.value.remedy
    lock.release()
    assert check() == f"no other run has {tmp_path}"
    lock = lock_run(tmp_path, tell=print)  # the check has released it
    assert lock is not None
    lock.release()
