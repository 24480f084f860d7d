"""The runs of a sweep: files, choices and folders."""

import json
from pathlib import Path

import pytest

from verl_comprl.config.reading import ConfigError
from verl_comprl.sweep.runs import Run, compose, expand, read_runs


def test_choices_make_a_run_for_each_combination() -> None:
    runs = expand(Run(""), ["arm=baseline,complementary", "trainer.total_training_steps=5", "data.seed=range(1,4)"])
    assert [run.name for run in runs] == [
        f"arm={arm},data.seed={seed}" for arm in ("baseline", "complementary") for seed in (1, 2, 3)
    ]
    assert runs[4].overrides == ("arm=complementary", "trainer.total_training_steps=5", "data.seed=2")


def test_without_choices_there_is_one_run_whose_own_overrides_come_last() -> None:
    overrides = ["data.seed=1", "data.train_files=[a,b]", "+new='x,y'"]
    (run,) = expand(Run("mine", ("data.seed=2",), "recipe"), overrides)
    assert run == Run("mine", (*overrides, "data.seed=2"), "recipe")
    assert [run.name for run in expand(Run(""), [])] == ["run"]


def test_choices_multiply_named_runs_and_folders_are_no_paths() -> None:
    runs = expand(Run("a"), ["data.val_files=x/1,x/2", "+extra=1,2"])
    assert [run.name for run in runs] == [f"a,data.val_files=x_{file},+extra={n}" for file in (1, 2) for n in (1, 2)]
    assert runs[0].overrides == ("data.val_files=x/1", "+extra=1")


def test_other_sweeps_of_hydra_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"data.seed=interval\(0,1\) is not a choice; allowed: key=a,b"):
        expand(Run(""), ["data.seed=interval(0,1)"])


RUNS = [{"name": "one", "overrides": ["arm=baseline", "data.seed=1"]}, {"name": 2, "config_name": "other"}]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("runs.json", json.dumps(RUNS)),
        ("runs.yaml", "- name: one\n  overrides: [arm=baseline, data.seed=1]\n- {name: 2, config_name: other}\n"),
    ],
)
def test_a_file_of_runs(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert read_runs(tmp_path / name) == [Run("one", ("arm=baseline", "data.seed=1")), Run("2", (), "other")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("runs: []", "must be a list of runs"),
        ("- [arm=baseline]", "is not a run; allowed: name (required), overrides, config_name"),
        ("- overrides: []", "is not a run"),
        ("- {name: a, override: [x=1]}", "is not a run"),
    ],
)
def test_a_file_that_has_something_else(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "runs.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_runs(tmp_path / "runs.yaml")
    assert message in str(caught.value)


@pytest.mark.slow
def test_each_run_has_a_folder_of_its_own(tmp_path: Path) -> None:
    shared = (f"trainer.default_local_dir={tmp_path}", "trainer.total_training_steps=7")
    runs = [Run("arm=baseline,data.seed=1", (*shared, "arm=baseline")), Run("b", shared)]
    first, second = compose(runs, None, "comprl_trainer")
    assert first.trainer.default_local_dir == f"{tmp_path}/arm=baseline,data.seed=1"
    assert second.comprl.bank.path == f"{tmp_path}/b/bank" and second.comprl.queue.folder == f"{tmp_path}/b/queue"
    assert (first.comprl.arm, second.comprl.arm) == ("baseline", "complementary")
    assert second.trainer.total_training_steps == 7


@pytest.mark.slow
def test_what_hydra_refuses_is_one_line_with_the_run() -> None:
    with pytest.raises(ConfigError, match=r"^run b: Could not override 'trainer\.no_such_key'\. .*$"):
        compose([Run("a"), Run("b", ("trainer.no_such_key=1",))], None, "comprl_trainer")


def test_mistakes_are_found_before_anything_is_composed() -> None:
    runs = [Run("a", ("comprl.guided_fractoin=0.5",)), Run("a", ("comprl.guided_fractoin=0.5",))]
    with pytest.raises(ConfigError) as caught:
        compose(runs, Path("nowhere"), "nothing")
    lines = str(caught.value).splitlines()
    assert lines[0] == "run a: another run has the same name"
    assert len(lines) == 2 and lines[1].startswith("comprl.guided_fractoin is unknown")
