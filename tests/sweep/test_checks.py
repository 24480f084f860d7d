"""The check of a whole sweep: which run has which mistake."""

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from verl_comprl.config.reading import ConfigError
from verl_comprl.sweep import checks
from verl_comprl.sweep.checked_run import FINISHED
from verl_comprl.sweep.checks import check
from verl_comprl.sweep.runs import Run, compose


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = f"trainer.default_local_dir={tmp_path_factory.mktemp('sweep')}"
    return [
        Run("plain", (folder, "arm=baseline")),
        Run("full", (folder,)),
        Run("long", (folder, "extractor.rollout.max_model_len=99", "data.train_batch_size=3")),
    ]


@pytest.fixture(scope="module")
def composed(runs: list[Run]) -> list[Any]:
    return compose(runs, None, "comprl_trainer")


@pytest.fixture
def configs(composed: list[Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Configs whose own check passes, as if models and data existed."""

    def check_config(config: Any) -> SimpleNamespace:
        config.trainer.device = "cpu"
        return SimpleNamespace(experience=config.comprl.experience, guided_fraction=0.5)

    monkeypatch.setattr(checks, "check_config", check_config)
    return copy.deepcopy(composed)


def test_a_run_is_compared_with_the_first_one_that_uses_both_models(runs: list[Run], configs: list[Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        check(runs, configs)
    assert str(caught.value).splitlines() == [
        "run long: extractor.rollout.max_model_len=99 is not the None of run full, with which it is to share engines"
    ]


def test_runs_that_fit(runs: list[Run], configs: list[Any]) -> None:
    checked = check(runs[:2], configs[:2])
    assert [run.guided_fraction for run in checked] == [None, 0.5]
    assert [run.folder.name for run in checked] == ["plain", "full"] and checked[0].record is None


def test_the_server_that_runs_share_holds_the_calls_of_each(
    runs: list[Run], configs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the first one, with which it is started, needs less."""
    given = [runs[0], runs[1], Run("longer", (*runs[1].overrides, "extractor.rollout.prompt_length=8000"))]
    needs, check_one = iter([100, 200, 300]), checks.check_config

    def fill_in(config: Any) -> Any:
        config.extractor.rollout.max_model_len = next(needs)
        return check_one(config)

    monkeypatch.setattr(checks, "check_config", fill_in)
    checked = check(given, [configs[0], configs[1], copy.deepcopy(configs[1])])
    assert [run.config.extractor.rollout.max_model_len for run in checked] == [100, 300, 300]


def test_a_run_with_engines_of_its_own_is_not_compared(runs: list[Run], configs: list[Any]) -> None:
    """It comes first, and would be the one with which the others are compared."""
    for number in (0, 2):
        configs[number].trainer.v1.trainer_mode = "comprl_separate_async"
    own, sharing, long = check([runs[2], runs[1], runs[0]], [configs[2], configs[1], configs[0]])
    assert not sharing.own_engines
    assert len(own.own_engines) == 1 and own.own_engines == long.own_engines
    (alone,) = check(runs[2:], configs[2:])
    assert alone.own_engines == own.own_engines


def test_a_mistake_of_one_run_names_it(runs: list[Run], configs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(config: Any) -> None:
        raise ConfigError("first\nsecond")

    monkeypatch.setattr(checks, "check_config", refuse)
    with pytest.raises(ConfigError) as caught:
        check(runs[1:2], configs[1:2])
    assert str(caught.value) == "run full: first\nrun full: second"


def test_a_finished_run_with_other_overrides_is_not_taken_for_this_one(runs: list[Run], configs: list[Any]) -> None:
    (one,) = check(runs[1:2], configs[1:2])
    one.folder.mkdir()
    record = {"name": "full", "overrides": list(one.run.overrides), "status": "finished"}
    (one.folder / FINISHED).write_text(json.dumps(record))
    (again,) = check(runs[1:2], configs[1:2])
    assert again.record == record
    (one.folder / FINISHED).write_text(json.dumps(record | {"overrides": ["data.seed=1"]}))
    with pytest.raises(
        ConfigError, match=r"full has a finished run with data\.seed=1; use another folder or remove it"
    ):
        check(runs[1:2], configs[1:2])


def test_a_value_that_refers_to_nothing_is_named(runs: list[Run], configs: list[Any]) -> None:
    configs[1].actor_rollout_ref.model.path = "${oc.env:NO_SUCH_VARIABLE}"
    with pytest.raises(ConfigError, match=r"^run full: .*'NO_SUCH_VARIABLE' not found.* full_key: actor_rollout_ref\."):
        check(runs[1:2], configs[1:2])


def test_a_sweep_without_runs() -> None:
    with pytest.raises(ConfigError, match="at least one run"):
        check([], [])


def test_a_torn_record_is_a_mistake_of_its_run(runs: list[Run], configs: list[Any]) -> None:
    file = Path(configs[0].trainer.default_local_dir) / FINISHED
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('{"name": "ru')
    try:
        with pytest.raises(ConfigError) as caught:
            check(runs[:2], configs[:2])
    finally:
        file.unlink()
    mistake, *_ = str(caught.value).splitlines()  # the folder of the other run has a record, too
    assert mistake.startswith(f"run plain: {file} cannot be read: ")
