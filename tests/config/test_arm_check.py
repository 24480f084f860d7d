"""A run must be the arm whose name it carries, whatever the recipe sets after the arm was applied."""

from pathlib import Path

import pytest
from omegaconf import DictConfig

from verl_comprl.config.arm_check import contradictions, unknown_arms
from verl_comprl.config.composing import compose

RECIPES = Path(__file__).parents[2] / "recipes"
ARMS = ("all_guided", "baseline", "complementary", "no_merge", "no_search_and_ask", "offline", "static_online")


def config(recipe: str, *overrides: str) -> DictConfig:
    return compose(RECIPES, recipe, overrides)


@pytest.fixture(autouse=True)
def places(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TASKS", "RUN", "MODELS", "MINIATURE"):
        monkeypatch.setenv(f"COMPRL_{name}", "folder")


@pytest.mark.parametrize(
    ("recipe", "arm"),
    [*(("mix3/paper", arm) for arm in ARMS), ("minihack_small/cpu", "offline"), ("miniature/full", "no_merge")],
)
def test_recipes_leave_to_an_arm_what_it_sets(recipe: str, arm: str) -> None:
    assert list(contradictions(config(recipe, f"arm={arm}"))) == []


def test_an_arm_is_only_called_unknown_where_hydra_would_look_nowhere_else() -> None:
    assert unknown_arms(["arm=offline", "comprl.seed=1"]) == []
    assert unknown_arms(["arm=mine"]) != []
    assert unknown_arms(["--config-dir", "configs", "--config-name=recipe", "arm=mine"]) == []
    assert unknown_arms(["hydra.searchpath=[file://configs]", "arm=mine"]) == []


def test_a_setting_that_undoes_the_arm_is_named_with_its_remedy() -> None:
    (line,) = contradictions(config("minihack_small/cpu", "arm=no_merge", "comprl.merge.every=4"))
    assert line.startswith("arm=no_merge means comprl.merge.every=0, but the recipe or the command line sets 4")
    lines = list(contradictions(config("mix3/cpu", "arm=offline", "comprl.extractor.train=true")))
    assert [line.split(",")[0] for line in lines] == [
        "arm=offline means comprl.extractor.train=false",
        "arm=offline means comprl.merge.every=0",  # recipes/shared/mix_steps.yaml
    ]


@pytest.mark.parametrize(
    "setting", ["algorithm.adv_estimator=grpo", "comprl.experience=false", "comprl.extractor.train=false"]
)
def test_the_method_is_not_the_name_of_a_part_of_it(setting: str) -> None:
    """As after a config of plain GRPO was extended: its estimator would make it the arm ``shared_baseline``."""
    (line,) = contradictions(config("minihack_small/cpu", setting))
    assert line.startswith(f"arm=complementary means {setting.partition('=')[0]}=")


def test_an_evaluation_may_give_a_baseline_a_bank() -> None:
    changed = config("minihack_small/cpu", "arm=baseline", "comprl.experience=true", "algorithm.adv_estimator=grpo")
    assert [line.split(",")[0] for line in contradictions(changed)] == ["arm=baseline means comprl.experience=false"]
    changed.trainer.val_only = True
    assert list(contradictions(changed)) == []


def test_an_arm_of_the_users_own_may_set_anything() -> None:
    changed = config("minihack_small/cpu", "arm=no_merge", "comprl.merge.every=4", "comprl.arm=rare_merges")
    assert list(contradictions(changed)) == []
