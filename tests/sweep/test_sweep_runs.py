"""The runs of a sweep: choices and folders."""

from pathlib import Path

import pytest

from verl_comprl.config.reading import ConfigError
from verl_comprl.sweep.runs import Run, compose, expand


def test_choices_make_a_run_for_each_combination() -> None:
    runs = expand(Run(""), ["arm=baseline,complementary", "trainer.total_training_steps=5", "data.seed=range(1,4)"])
    assert [run.name for run in runs] == [
        f"arm={arm},data.seed={seed}" for arm in ("baseline", "complementary") for seed in (1, 2, 3)
    ]
    assert runs[4].overrides == ("arm=complementary", "trainer.total_training_steps=5", "data.seed=2")


def test_without_choices_there_is_one_run_whose_own_overrides_come_last() -> None:
    overrides = ["arm=baseline", "data.train_files=[a,b]", "+new='x,y'"]
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


@pytest.mark.parametrize(
    "override", ["arm=baseline,", "arm", "", "data.seed=range(a)", "data.seed=range(1,4,0)", "a=b(", "x=glob(*)"]
)
def test_what_is_no_override_is_refused(override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        expand(Run(""), ["data.seed=1", override])
    allowed = "key=value, key=a,b or key=range(1,4), with quotes around special characters"
    assert str(caught.value) == f"{override} cannot be read; allowed: {allowed}"


def test_a_choice_without_values_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data.seed=range\(3,1\) is not a choice"):
        expand(Run(""), ["data.seed=range(3,1)"])


@pytest.mark.parametrize("arm", ["arm=baseline,complementary", "arm=baseline", "+arm=baseline"])
def test_a_key_of_a_run_is_not_given_for_all_runs_too(arm: str) -> None:
    with pytest.raises(ConfigError) as caught:
        expand(Run("x", ("arm=complementary", "++data.seed=1")), [arm, "trainer.test_freq=5", "data.seed=2"])
    assert str(caught.value).splitlines() == [
        f"run x: {key} is given for this run and on the command line; remove one of them"
        for key in ("arm", "data.seed")
    ]


@pytest.mark.parametrize("overrides", [["arm=a,b", "arm=c"], ["arm=c", "arm=a,b"], ["+arm=a,b", "x=1", "arm=c,d"]])
def test_the_key_of_a_choice_is_not_given_again(overrides: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"^\+?arm=a,b is a choice, but arm is given again; remove one of them"):
        expand(Run(""), overrides)


def test_a_key_may_be_given_twice_where_runs_are_not_named_after_it() -> None:
    (run,) = expand(Run("x"), ["data.seed=1", "data.seed=2"])
    assert run == Run("x", ("data.seed=1", "data.seed=2"))


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
    with pytest.raises(ConfigError, match=r"^run b: trainer\.no_such_key is unknown; .*$"):
        compose([Run("a"), Run("b", ("trainer.no_such_key=1",))], None, "comprl_trainer")


def test_mistakes_are_found_before_anything_is_composed() -> None:
    runs = [Run("a", ("comprl.guided_fractoin=0.5",)), Run("a", ("comprl.guided_fractoin=0.5",))]
    with pytest.raises(ConfigError) as caught:
        compose(runs, Path("nowhere"), "nothing")
    lines = str(caught.value).splitlines()
    assert lines[0] == "run a: another run has the same name"
    assert len(lines) == 2 and lines[1].startswith("comprl.guided_fractoin is unknown")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (
            "trainer: {default_local_dir: '${oc.env:NO_SUCH_VARIABLE}'}",
            "Environment variable 'NO_SUCH_VARIABLE' not found",
        ),
        ("trainer: {default_local_dir: null}", "trainer.default_local_dir=None must name a folder"),
        ("trainer: [", "while parsing a flow node"),
        ("trainer: ${", "no viable alternative"),
    ],
)
def test_a_recipe_that_cannot_be_used(recipe: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(f"{recipe}\n")
    with pytest.raises(ConfigError) as caught:
        compose([Run("a")], tmp_path, "recipe")
    assert str(caught.value).startswith("run a: ") and message in str(caught.value)


@pytest.mark.slow
def test_a_group_takes_a_name() -> None:
    with pytest.raises(ConfigError, match=r"^run a: Config group override must be a string or a list\. Got int$"):
        compose([Run("a", ("arm=1",))], None, "comprl_trainer")


@pytest.mark.slow
def test_a_recipe_that_does_not_exist(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match=r"^run a: .*nothing|nowhere"):
            compose([Run("a")], folder, "nothing")
