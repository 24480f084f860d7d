"""Each setting of the miniature passes the checks of a start with every arm."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.utils.config import omega_conf_to_dataclass

from env_adapters.vaults.environment import VaultsEnvironment
from env_adapters.vaults.task import observation
from env_adapters.vaults.world import MOVES
from recipes.miniature import check as check_models
from recipes.miniature import check_retrieval
from recipes.miniature import run as run_module
from recipes.miniature.arms import ARMS, FILLING_STEPS, filling, initial_bank
from recipes.miniature.entries import WORKED, moves_content
from recipes.miniature.run import MODELS, ROOT, main, run_name, set_environment, shared_overrides
from recipes.miniature.settings import SETTINGS, Name
from verl_comprl.sweep.checks import check
from verl_comprl.sweep.runs import Run, compose


@pytest.fixture(autouse=True)
def _environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COMPRL_MINIATURE", "COMPRL_MODELS", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "")  # so that what is set now is undone at the end


@pytest.mark.parametrize(("setting", "families"), [("plain", 1), ("plain", 2), ("wide", 3), ("full", 3)])
def test_every_arm_can_be_started(setting: Name, families: int, tmp_path: Path) -> None:
    models = MODELS / setting
    # Those of `wide` are not shipped, so that the checks say nothing about its tensor sizes; the rest is the same.
    set_environment(tmp_path, models if models.exists() else MODELS / "plain")
    shared = shared_overrides(tmp_path / "data", families=families, seed=5, steps=4, every=2)
    # Where a run that fills a bank leaves it with its last checkpoint.
    bank = Path(initial_bank(tmp_path).partition("=")[2])
    assert bank.parent.parent.name == f"global_step_{FILLING_STEPS}"
    bank.mkdir(parents=True)
    (bank / "manifest.json").write_text("{}")
    runs = [Run(arm, (*shared, *overrides)) for arm, overrides in ARMS.items() if arm != "offline"]
    runs += [Run("offline", (*shared, *ARMS["offline"], initial_bank(tmp_path))), Run("filling", (*shared, *filling()))]
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


@pytest.mark.parametrize(("layer", "coefficient"), [((), 1.0), (("shared/trainer=separate_async",), math.exp(0.1))])
def test_the_actors_loss(layer: tuple[str, ...], coefficient: float, tmp_path: Path) -> None:
    set_environment(tmp_path, MODELS / "plain")
    shared = shared_overrides(tmp_path / "data", families=1, seed=5, steps=4, every=2)
    (run,) = check(runs := [Run("run", (*shared, *layer))], compose(runs, ROOT / "recipes", SETTINGS["plain"].config))
    actor: Any = omega_conf_to_dataclass(run.config.actor_rollout_ref.actor)
    actor.global_batch_info.update(dp_size=1, batch_num_tokens=2, global_batch_size=None, loss_scale_factor=None)
    log_prob = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    loss_function: Any = get_policy_loss_fn(actor.policy_loss.loss_mode)
    # −A log π with the synchronous trainer, whatever the server's log-probs; with staleness, the ratio to these.
    loss, _ = loss_function(
        old_log_prob=log_prob.detach() - 0.1,
        log_prob=log_prob,
        advantages=torch.full((1, 2), 3.0),
        response_mask=torch.ones(1, 2),
        loss_agg_mode="token-mean",
        config=actor,
    )
    loss.backward()
    assert log_prob.grad is not None
    assert log_prob.grad.flatten().tolist() == pytest.approx([-3 * coefficient / 2] * 2)


def test_several_optimizer_steps_on_a_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_environment(tmp_path, MODELS / "plain")
    shared = shared_overrides(tmp_path / "data", families=3, seed=5, steps=4, every=2, updates=4)
    runs = [Run(arm, (*shared, *ARMS[arm])) for arm in ("baseline", "self_distillation", "self_imitation")]
    for run in check(runs, compose(runs, ROOT / "recipes", SETTINGS["plain"].config)):
        actor = run.config.actor_rollout_ref.actor
        assert (run.config.data.train_batch_size, actor.ppo_mini_batch_size, actor.ppo_epochs) == (12, 3, 1)
        assert actor.ppo_micro_batch_size_per_gpu == 8 and actor.shuffle
        # Eq. 4 with its clip, the ratio to the weights at the start of the batch.
        assert (actor.policy_loss.loss_mode, actor.clip_ratio) == ("vanilla", 0.2)
        assert not run.config.algorithm.rollout_correction.bypass_mode
    assert run_name("baseline", 3, 5, updates=4) == "baseline-3u4-5"
    with pytest.raises(SystemExit):
        main(["--families", "3", "1", "--updates", "3"])
    assert "--updates 3 does not divide the 4 prompts of a step" in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["plain", "full"])
def test_an_asynchronous_trainer_can_be_chosen(setting: Name, tmp_path: Path) -> None:
    set_environment(tmp_path, MODELS / setting)
    shared = shared_overrides(tmp_path / "data", families=3, seed=5, steps=4, every=2)
    modes = ("separate_async", "colocate_async")
    runs = [Run(mode, (*shared, f"shared/trainer={mode}")) for mode in modes]
    separate, colocate = check(runs, compose(runs, ROOT / "recipes", SETTINGS[setting].config))
    assert separate.own_engines and not colocate.own_engines
    assert [run.config.trainer.v1.trainer_mode for run in (separate, colocate)] == [f"comprl_{mode}" for mode in modes]


@pytest.mark.parametrize("setting", ["plain", "full"])
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
    if config.comprl.search_and_ask.max_calls:
        answer = max(length("tool", moves_content(moves, WORKED)) for moves in itertools.product(MOVES, repeat=3))
        needed += config.comprl.max_turn_tokens + around + answer
    data = config.data
    assert needed <= data.max_response_length
    assert config.actor_rollout_ref.rollout.max_model_len == data.max_prompt_length + data.max_response_length


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "-1"], "'-1' is not an integer from 0 to"),
        (["--seeds", str(2**32)], "is not an integer from 0 to 4294967295"),
        (["--prompts", "0"], "'0' is not an integer from 1 to"),
        (["--families", "4"], "invalid choice: 4"),
    ],
)
def test_wrong_numbers_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err


def test_missing_models_are_named_with_the_command_that_makes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--models", str(tmp_path / "none"), "--output", str(tmp_path)]) == 1
    assert (
        f"python -m recipes.miniature.prepare --setting plain --output {tmp_path / 'none'}" in capsys.readouterr().err
    )


def test_models_that_are_not_where_the_miniature_begins_are_not_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained: list[Path] = []
    expected = check_models.EXPECTED | check_retrieval.EXPECTED
    figures = {name: (low + high) / 2 for name, (low, high) in expected.items()}
    monkeypatch.setattr(check_retrieval, "check_retrieval", dict)
    monkeypatch.setattr(run_module, "_train", lambda *_: trained.append(tmp_path) or 130)
    for off, code in (
        ({}, 130),
        ({"right_rule_kind_family": 0.5}, 1),
        ({"success_free": 0.4}, 1),
        ({"right_contents": 0.32}, 1),
    ):
        output = tmp_path / "-".join(["output", *off])
        monkeypatch.setattr(check_models, "check", lambda *_, off=off, **__: figures | off)
        assert main(["--output", str(output)]) == code
        printed = capsys.readouterr().err
        assert all(f"{name} is {value:.2f}, expected" in printed for name, value in off.items())
    assert len(trained) == 1


def test_the_figures_of_the_design_are_within_what_is_expected_and_others_are_not() -> None:
    """The trial's, and those with which it could not show anything."""
    good = {"success_free": 0.16, "success_right_entry": 0.9, "success_wrong_entry": 0.05, "right_contents": 0.45}
    bad = {"success_free": 0.5, "success_right_entry": 0.6, "success_wrong_entry": 0.3, "right_contents": 0.2}
    for figures, within in ((good, True), (bad, False)):
        for name, value in figures.items():
            low, high = check_models.EXPECTED[name]
            assert (low <= value <= high) == within, name
    assert check_models.EXPECTED["unparsable"][1] <= 0.03
    least = {
        name: (check_models.EXPECTED | setting.expected)["right_contents"][0] for name, setting in SETTINGS.items()
    }
    assert least == {"plain": 0.33, "wide": 0.3, "full": 0.33}  # the design's limit refuses the one wide pair
    assert check_retrieval.EXPECTED["right_rule_kind_family"][0] > 0.9


@pytest.mark.parametrize("setting", ["plain", "full"])
def test_the_designs_settings(setting: Name, tmp_path: Path) -> None:
    set_environment(tmp_path, MODELS / setting)
    shared = shared_overrides(tmp_path / "data", families=3, seed=5, steps=60, every=30)
    runs = [Run("complementary", (*shared, *ARMS["complementary"]))]
    config = check(runs, compose(runs, ROOT / "recipes", SETTINGS[setting].config))[0].config
    actor, extractor, comprl = config.actor_rollout_ref, config.extractor, config.comprl
    assert (actor.actor.optim.lr, extractor.actor.optim.lr) == (1e-3, 5e-4)
    assert (config.data.train_batch_size, actor.rollout.n, actor.actor.ppo_mini_batch_size) == (12, 8, 12)
    assert (actor.rollout.temperature, actor.rollout.val_kwargs.temperature) == (1.0, 1.0)
    assert (comprl.warmup_steps, comprl.exploration, comprl.guide_per) == (2, 0.0, "rollout")
    assert (comprl.extractor.batch_size, comprl.extractor.format_failure_reward) == (16, -2.0)
    assert (comprl.extractor.alpha, comprl.extractor.cooldown, comprl.extractor.list_nearest) == (0.5, 1, 0)
    # The design's λ = 1 is for ranks that are not divided by the pool. It has 12 entries per rule (docs/miniature.md).
    bank = comprl.bank
    assert (bank.retrieval_pool, bank.diversity, bank.recency_seconds, bank.capacity) == (16, 1 / 16, 0.0, 24 * 24)


def test_an_arm_that_the_setting_cannot_show_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--arms", "complementary", "no_merge"])
    assert "no_merge would be complementary: only --setting full merges and asks" in capsys.readouterr().err
