"""Each setting of the miniature passes the checks of a start with every arm."""

from pathlib import Path

import pytest

from recipes.miniature.arms import ARMS
from recipes.miniature.run import MODELS, ROOT, main, set_environment, shared_overrides
from recipes.miniature.settings import SETTINGS, Name
from verl_comprl.sweep.checks import check
from verl_comprl.sweep.runs import Run, compose


@pytest.mark.parametrize(("setting", "families"), [("plain", 1), ("plain", 2), ("wide", 3), ("full", 3)])
def test_every_arm_can_be_started(
    setting: Name, families: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("COMPRL_MINIATURE", "COMPRL_MODELS", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "")  # so that what is set now is undone at the end
    models = MODELS / setting
    if not models.exists():
        # Not shipped yet: template, tokens and tensor sizes are those of other models, so that here the checks say
        # nothing about those of this setting.
        models = MODELS / "plain"
    set_environment(tmp_path, models)
    shared = shared_overrides(tmp_path / "data", families=families, seed=5, steps=4, every=2)
    started = {arm: overrides for arm, overrides in ARMS.items() if arm != "offline"}  # needs a bank that exists
    runs = [Run(arm, (*shared, *overrides)) for arm, overrides in started.items()]
    configs = {
        run.run.name: run.config for run in check(runs, compose(runs, ROOT / "recipes", SETTINGS[setting].config))
    }
    merges = {name for name, config in configs.items() if config.comprl.merge.every}
    questions = {name for name, config in configs.items() if config.comprl.search_and_ask.max_calls}
    if setting == "full":
        assert "complementary" in merges & questions
        assert "no_merge" not in merges and "no_search_and_ask" not in questions
        assert {"no_merge"} < questions and {"no_search_and_ask"} < merges
    else:
        assert not merges and not questions


def test_an_arm_that_the_setting_cannot_show_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--arms", "complementary", "no_merge"])
    assert "no_merge would be complementary: only --setting full merges and asks" in capsys.readouterr().err
