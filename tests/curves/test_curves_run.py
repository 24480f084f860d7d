"""Reading a run's folder: series, settings, and what is said of folders without a run."""

from pathlib import Path

import pytest
from run_folders import append, write_run

from verl_comprl.curves.run import open_run


def test_series_have_the_first_value_of_each_step(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", {0: {"a": 0.5}, 1: {"a": 1.0, "b": None}, 2: {"b": 2}})
    append(folder, {2: {"b": 9.0, "c": 1.0}})
    assert open_run(folder).series(["a", "b"]) == {"a": {0: 0.5, 1: 1.0}, "b": {2: 2.0}}


def test_settings_are_those_of_the_saved_configuration(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", {}, arm="baseline"))
    assert run.arm == "baseline" and not run.has_experience and run.total_steps == 60
    assert run.setting("data.train_batch_size") == 8
    with pytest.raises(ValueError, match=r"no setting 'data.seed.x'"):
        run.setting("data.seed.x")


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none is no folder"):
        open_run(tmp_path / "none")
    write_run(tmp_path / "runs" / "one", {})
    with pytest.raises(FileNotFoundError, match=r"runs is not the folder of a run: it has no config.yaml; it contains"):
        open_run(tmp_path / "runs")
    for text, message in (("a: [", "is not YAML"), ("trainer: {}", "has no comprl.arm"), ("- 1", "has no comprl.arm")):
        (tmp_path / "config.yaml").write_text(text)
        with pytest.raises(ValueError, match=message):
            open_run(tmp_path)
