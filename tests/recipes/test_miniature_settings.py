"""Each setting of the miniature passes the checks of a start with every arm."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from env_adapters.vaults.environment import VaultsEnvironment
from env_adapters.vaults.task import observation
from env_adapters.vaults.world import MOVES
from recipes.miniature.arms import ARMS
from recipes.miniature.run import MODELS, ROOT, main, set_environment, shared_overrides
from recipes.miniature.settings import SETTINGS, Name
from verl_comprl.sweep.checks import check
from verl_comprl.sweep.runs import Run, compose


@pytest.fixture(autouse=True)
def _environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COMPRL_MINIATURE", "COMPRL_MODELS", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "")  # so that what is set now is undone at the end
    set_environment(tmp_path)


@pytest.mark.parametrize(("setting", "families"), [("plain", 1), ("plain", 2), ("wide", 3), ("full", 3)])
def test_every_arm_can_be_started(setting: Name, families: int, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("setting", ["plain"])
def test_every_turn_of_the_longest_episode_fits(setting: Name) -> None:
    config = compose([Run("lengths", ())], ROOT / "recipes", SETTINGS[setting].config)[0]
    tokenizer = AutoTokenizer.from_pretrained(MODELS / setting / "actor")

    def length(role: str, content: str) -> int:
        return len(
            tokenizer.apply_chat_template([{"role": role, "content": content}], tokenize=True, return_dict=False)
        )

    environment = VaultsEnvironment()
    environment.reset(seed=1)
    shown = max(length("user", observation(2, move=move, hit=hit)) for move in MOVES for hit in (True, False))
    refused = length("user", environment.step("")[0]) - shown
    # What the template puts around a turn of the actor, which generates its end itself unless it is cut.
    around = length("assistant", "")
    needed = 8 * (config.comprl.max_turn_tokens + around) + 7 * shown + refused
    data = config.data
    assert needed <= data.max_response_length
    assert config.actor_rollout_ref.rollout.max_model_len == data.max_prompt_length + data.max_response_length


def test_an_arm_that_the_setting_cannot_show_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--arms", "complementary", "no_merge"])
    assert "no_merge would be complementary: only --setting full merges and asks" in capsys.readouterr().err
