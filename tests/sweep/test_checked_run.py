"""A run whose folder has something from before counts as finished, goes on, or is refused."""

import json
import shutil
from errno import EIO
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from verl_comprl.config.reading import ConfigError
from verl_comprl.config.saved import FILE, save_config
from verl_comprl.sweep.checked_run import FINISHED, UNFINISHED, CheckedRun
from verl_comprl.sweep.runs import Run

STEPS = "trainer.total_training_steps"


def wanted(folder: Path, *overrides: str, **trainer: Any) -> CheckedRun:
    """Return a run with overrides, and with settings of the trainer that a recipe may have made."""
    config = OmegaConf.create({"trainer": {"default_local_dir": str(folder), **trainer}})
    return CheckedRun(Run("run", overrides), config, None)


def store(folder: Path, *overrides: str, checkpoint: int = 0, **more: Any) -> dict[str, Any]:
    """Leave what a finished run and a later checkpoint leave in a folder; return the record."""
    record = {"name": "run", "overrides": list(overrides), "status": "finished", **more}
    (folder / FINISHED).write_text(json.dumps(record))
    save(folder, checkpoint)
    return record


def save(folder: Path, step: int) -> None:
    if step:
        weights = folder / f"global_step_{step}" / "actor" / "model.safetensors"
        weights.parent.mkdir(parents=True)
        weights.touch()
        (folder / "latest_checkpointed_iteration.txt").write_text(str(step))


@pytest.mark.parametrize("checkpoint", [0, 50])
def test_a_finished_run_without_its_last_checkpoint_cannot_go_on(tmp_path: Path, checkpoint: int) -> None:
    store(tmp_path, f"{STEPS}=60", checkpoint=checkpoint)
    run = wanted(tmp_path, f"{STEPS}=120")
    assert run.record is None and run.mistake == (
        f"{tmp_path} has a finished run of 60 steps without a checkpoint of its last one, so that it cannot be "
        "continued; remove it, and set trainer.save_freq"
    )


@pytest.mark.parametrize("checkpoint", [60, 77, 90, 120])
def test_a_finished_run_goes_on_also_after_an_interruption(tmp_path: Path, checkpoint: int) -> None:
    record = store(tmp_path, f"{STEPS}=60", checkpoint=checkpoint)
    run = wanted(tmp_path, f"{STEPS}=120")
    assert (run.record, run.stored, run.mistake, run.checkpoint) == (None, record, None, checkpoint)


@pytest.mark.parametrize("steps", [30, 60])
@pytest.mark.parametrize("checkpoint", [0, 60, 90, 120])
def test_a_run_with_enough_steps_has_finished(tmp_path: Path, steps: int, checkpoint: int) -> None:
    record = store(tmp_path, f"{STEPS}=60", checkpoint=checkpoint)
    run = wanted(tmp_path, f"{STEPS}={steps}")
    assert (run.record, run.mistake, run.surplus, run.stored_steps) == (record, None, 60 - steps, 60)


@pytest.mark.parametrize("steps", [60, 120])
def test_frequencies_do_not_count(tmp_path: Path, steps: int) -> None:
    store(tmp_path, f"{STEPS}=60", "trainer.test_freq=30", "+trainer.save_freq=30", checkpoint=60)
    run = wanted(tmp_path, "trainer.test_freq=20", "trainer.save_freq=40", f"{STEPS}={steps}")
    assert run.mistake is None and bool(run.record) == (steps == 60)


def test_the_last_override_of_a_setting_counts(tmp_path: Path) -> None:
    record = store(tmp_path, f"{STEPS}=120", "data.seed=1", f"{STEPS}=60", "data.seed=2", checkpoint=60)
    assert wanted(tmp_path, f"++{STEPS}=60", "data.seed=2").record == record
    assert wanted(tmp_path, f"{STEPS}=60", f"{STEPS}=90", "data.seed=2").surplus == -30
    assert wanted(tmp_path, f"{STEPS}=60", "data.seed=2", "data.seed=1").surplus is None


@pytest.mark.parametrize("other", ["data.seed=1", "+trainer.val_only=true"])
@pytest.mark.parametrize("steps", [30, 60, 120])
def test_another_run_in_the_folder_is_refused(tmp_path: Path, steps: int, other: str) -> None:
    store(tmp_path, f"{STEPS}=60", checkpoint=60)
    run = wanted(tmp_path, f"{STEPS}={steps}", other)
    message = f"{tmp_path} has a finished run with {STEPS}=60; use another folder or remove it"
    assert (run.record, run.mistake) == (None, message)


@pytest.mark.parametrize("stored", [{"steps": 60}, {"metrics": {"training/global_step": 60.0}}])
@pytest.mark.parametrize("steps", [30, 60, 120])
def test_steps_of_the_recipe_count_as_those_of_an_override(tmp_path: Path, stored: dict[str, Any], steps: int) -> None:
    record = store(tmp_path, "data.seed=1", checkpoint=60, **stored)
    again = wanted(tmp_path, "data.seed=1", total_training_steps=steps)  # the same command
    assert (again.record, again.mistake) == (record if steps <= 60 else None, None)
    override = wanted(tmp_path, "data.seed=1", f"{STEPS}={steps}")
    assert again.surplus == override.surplus == 60 - steps and again.stored_steps == 60


@pytest.mark.parametrize("stored", [{"steps": 60}, {}])
def test_steps_of_all_epochs(tmp_path: Path, stored: dict[str, Any]) -> None:
    record = store(tmp_path, "data.seed=1", **stored)
    assert wanted(tmp_path, "data.seed=1", total_training_steps=None).record == record  # neither says how many
    epochs = wanted(tmp_path, "data.seed=1", f"{STEPS}=null", total_training_steps=None)
    assert epochs.surplus is None and "has a finished run with data.seed=1" in str(epochs.mistake)
    store(tmp_path, "data.seed=1", f"{STEPS}=60")
    assert wanted(tmp_path, "data.seed=1", total_training_steps=120).surplus == -60


def test_steps_that_an_override_takes_from_elsewhere_count(tmp_path: Path) -> None:
    """The text of the override is the same."""
    overrides = ("data.seed=1", f"{STEPS}=${{oc.env:STEPS}}")
    store(tmp_path, *overrides, checkpoint=60, steps=60)
    assert wanted(tmp_path, *overrides, total_training_steps=60).surplus == 0
    assert wanted(tmp_path, *overrides, total_training_steps=120).surplus == -60


def test_a_checkpoint_counts_if_it_is_there_and_used(tmp_path: Path) -> None:
    store(tmp_path, f"{STEPS}=60", checkpoint=60)
    fresh = wanted(tmp_path, f"{STEPS}=120", resume_mode="disable")
    assert fresh.checkpoint == 0 and str(fresh.mistake).endswith("remove it, and set trainer.resume_mode=auto")
    shutil.rmtree(tmp_path / "global_step_60")
    gone = wanted(tmp_path, f"{STEPS}=120")
    assert gone.checkpoint == 0 and str(gone.mistake).endswith("remove it, and set trainer.save_freq")


def test_a_run_whose_checkpoint_cannot_be_read_at_present_is_not_to_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(tmp_path, f"{STEPS}=60", checkpoint=60)

    def fail(self: Path) -> bytes:
        raise OSError(EIO, "Input/output error", str(self))

    monkeypatch.setattr(Path, "read_bytes", fail)
    monkeypatch.setattr("verl_comprl.files.time.sleep", lambda seconds: None)
    run = wanted(tmp_path, f"{STEPS}=120")
    assert run.checkpoint == 0 and "complete.json cannot be read at present (Input/output error)" in str(run.mistake)
    assert wanted(tmp_path, f"{STEPS}=60").mistake is None, "it has finished and needs none"


def test_a_run_cannot_end_before_its_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 90)
    assert wanted(tmp_path, f"{STEPS}=90").mistake is None
    message = (
        f"{tmp_path} has a checkpoint of step 90, beyond {STEPS}=80; ask for at least 90 steps, "
        "use another folder or remove it"
    )
    assert wanted(tmp_path, f"{STEPS}=80").mistake == message
    store(tmp_path, f"{STEPS}=60")
    assert wanted(tmp_path, f"{STEPS}=80").mistake == message
    assert wanted(tmp_path, f"{STEPS}=80", resume_mode="resume_path").checkpoint == 0


def test_a_new_folder(tmp_path: Path) -> None:
    run = wanted(tmp_path / "new", f"{STEPS}=60")
    assert (run.record, run.mistake, run.surplus, run.stored_steps, run.checkpoint) == (None, None, None, None, 0)


@pytest.mark.parametrize("name", [FINISHED, UNFINISHED])
def test_a_torn_record_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"name": "ru')
    with pytest.raises(ConfigError, match=rf"^{tmp_path / name} cannot be read: .*; remove it$"):
        _ = wanted(tmp_path).mistake


def test_changed_settings_are_named_where_something_of_the_folder_counts(tmp_path: Path) -> None:
    before = wanted(tmp_path, a=1, b={"c": [1], "gone": 1}, d=1, e=1, f=1, test_freq=5)
    save_config(before.config, tmp_path, steps=60)
    now = wanted(tmp_path, a=2, b={"c": [1, 2]}, d=1, e=2, f=2, g=2, test_freq=9)
    assert now.changes == ""  # nothing to continue from: the run begins again
    save(tmp_path, 30)
    named = "trainer.a=1 (now 2), trainer.b.c=[1] (now [1, 2]), trainer.e=1 (now 2), trainer.f=1 (now 2)"
    assert (now.changes, now.mistake, before.changes) == (named, None, "")
    now.config.trainer.d = 2
    assert now.changes.endswith("trainer.e=1 (now 2) and 1 more")
    (tmp_path / FILE).write_text("[")
    assert now.changes.startswith(f"settings that cannot be read: {tmp_path / FILE} is not YAML")
    (tmp_path / FILE).unlink()
    assert now.changes == ""


@pytest.mark.parametrize("stored", ["a-very-secret-value", "***"])
def test_a_secret_in_an_override_is_not_shown_and_the_run_is_known_by_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: str
) -> None:
    """Whether its record was written before secrets were taken out of it or since."""
    monkeypatch.setenv("SOME_API_KEY", "a-very-secret-value")
    setting = "+ray_kwargs.ray_init.runtime_env.env_vars.SOME_API_KEY"
    run = wanted(tmp_path, f"{setting}=a-very-secret-value", "a=1")
    assert run.overrides == [f"{setting}=***", "a=1"]
    record = store(tmp_path, f"{setting}={stored}", "a=1")
    assert run.record == record and run.mistake is None
    other = wanted(tmp_path, f"{setting}=a-very-secret-value", "a=2").mistake
    assert other is not None and "***" in other and "a-very-secret-value" not in other
