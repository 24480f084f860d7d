"""Training runs of the arms: the baseline against verl's own trainer, and two steps of every other arm."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from arm_settings import ARMS, BACK_ENDS, CANARY, STEPS
from chat_endpoint import ChatEndpoint
from running import check_arm, last_step, read_steps, undocumented
from safetensors.torch import load_file
from teaching import LESSON
from torch.utils._pytree import keystr, tree_flatten_with_path

import env_adapters

Steps = dict[str, list[dict[str, Any]]]

pytestmark = [pytest.mark.run, pytest.mark.timeout(1500)]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    file = folder / f"global_step_{STEPS}" / "actor" / "model_world_size_1_rank_0.pt"
    state = torch.load(file, weights_only=False)  # verl's own format
    return {name: getattr(value, "_local_tensor", value) for name, value in state.items()}


def test_the_baseline_is_verls_grpo_bit_for_bit(folder: Path, lent: Steps) -> None:
    """Both runs train on the same rollouts: verl's trainer makes and stores them, and verl replays them in ours."""
    assert len(lent["ours"]) == STEPS and "plain" not in lent
    rollouts = sorted((folder / "rollouts").rglob("tq_batch.pt"))
    assert len(rollouts) == STEPS
    after = (folder / "ours" / "config.yaml").stat().st_mtime_ns  # written when ours began
    assert all(file.stat().st_mtime_ns < after for file in rollouts), "our run made its own rollouts"
    assert not (folder / "ours" / "bank").exists()
    theirs, same = weights(folder / "plain"), weights(folder / "ours")
    assert theirs.keys() == same.keys()
    assert all(torch.equal(theirs[name], same[name]) for name in theirs)
    before = load_file(folder / "models" / "actor" / "model.safetensors")
    assert any(not torch.equal(before[name], same[name]) for name in before), "the weights did not change"


def engine_state(folder: Path) -> dict[str, Any]:
    """Return what verl saves of an engine, by path: weights, optimizer, learning-rate schedule, random state."""
    parts = {part: folder / f"{part}_world_size_1_rank_0.pt" for part in ("model", "optim", "extra_state")}
    states = {part: torch.load(file, weights_only=False) for part, file in parts.items()}
    return {keystr(path): getattr(value, "_local_tensor", value) for path, value in tree_flatten_with_path(states)[0]}


@pytest.mark.parametrize("model", ["actor", "extractor"])
def test_a_run_on_used_engines_starts_like_the_first_one(folder: Path, lent: Steps, model: str) -> None:
    """Bit for bit, after runs that loaded trained weights of both models from a checkpoint."""
    before = read_steps(folder / "run")
    # Not every step's rollouts differ in their rewards, but some step's do.
    assert max(step["actor/grad_norm"] for step in before) > 0 and before[-1]["comprl/extractor/updates"] > 0
    first, later = (engine_state(folder / "starts" / run / model) for run in (next(iter(ARMS)), "again"))
    assert first.keys() == later.keys()
    assert [name for name in first if not np.array_equal(first[name], later[name])] == []
    loaded = load_file(folder / "models" / model / "model.safetensors")
    assert all(torch.equal(value, later[f"['model']['{name}']"]) for name, value in loaded.items())
    versions = json.loads((folder / "starts" / "again" / "versions.json").read_text())
    assert versions == {"actor": 0, "extractor": 0}
    (step,) = lent["again"]
    assert step["training/rollout_probs_diff_mean"] < 1e-2, "the server has other weights"


@pytest.mark.parametrize("model", ["actor", "extractor"])
def test_a_resumed_run_starts_with_the_engines_of_its_checkpoint(folder: Path, lent: Steps, model: str) -> None:
    """Bit for bit: weights, optimizer, learning-rate schedule and random state."""
    saved = folder / "run" / f"global_step_{lent['resumed'][0]['step'] - 1}" / model
    expected, found = engine_state(saved), engine_state(folder / "starts" / "run" / model)
    assert expected.keys() == found.keys() and any(name.startswith("['optim']") for name in found)
    assert [name for name in expected if not np.array_equal(expected[name], found[name])] == []


def test_runs_on_the_same_engines_have_learning_rates_of_their_own(lent: Steps) -> None:
    rates = {arm: lent[arm][0]["actor/lr"] for arm in ("offline", "variants")}
    assert rates == {"offline": pytest.approx(5e-4), "variants": pytest.approx(1e-4)}


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_runs(lent: Steps, arm: str) -> None:
    check_arm(arm, lent[arm][-1])


@pytest.mark.parametrize("arm", ["offline", "static_online"])
def test_a_frozen_extractor_does_not_learn(lent: Steps, arm: str) -> None:
    assert len({step["comprl/extractor/updates"] for step in lent[arm]}) == 1


@pytest.mark.parametrize("run", [*BACK_ENDS, "other_back_end"])
def test_runs_without_a_second_model(folder: Path, lent: Steps, run: str) -> None:
    last = lent[run][-1]
    assert last["comprl/guided/rollouts"] > 0 and undocumented(last) == []
    # The server that answers both models' requests has the weights that are trained, and no cache of older ones.
    assert last["training/rollout_probs_diff_mean"] < 1e-2
    made = {kind: last.get(f"comprl/distillations/{kind}", 0) for kind in ("written", "return", "unreadable")}
    assert sum(made.values()) > 0 and (made["written"] > 0 or run != "endpoint")
    assert last["comprl/extractor/tokens/prompt"] > last["comprl/extractor/tokens/response"] > 0
    # No call failed or was given up because the actor's server was paused or had other weights.
    assert [name for name in last if name.startswith("comprl/failures/")] == []
    assert last["comprl/queue/retried"] == last["comprl/queue/dead"] == 0
    assert "comprl/extractor/updates" not in last and last["comprl/buffer/records"] == 0
    saved = folder / run / f"global_step_{last_step(folder / run)}"
    assert (saved / "comprl.json").exists() and not (saved / "extractor").exists()


def test_a_run_continues_with_another_back_end(lent: Steps) -> None:
    (step,) = lent["other_back_end"]
    before = lent["endpoint"][-1]
    assert (before["step"], step["step"]) == (2, 3)
    assert step["comprl/distillations/written"] >= before["comprl/distillations/written"]
    assert step["comprl/bank/size"] >= before["comprl/bank/size"]


def uncompressed(file: Path) -> bytes:
    return gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()


def test_the_endpoint_answers_with_the_key_of_the_environment_which_is_kept_nowhere(
    folder: Path, lent: Steps, teacher: ChatEndpoint
) -> None:
    assert teacher.keys == {f"Bearer {CANARY}"} and {request["model"] for request in teacher.requests} == {"teacher"}
    assert LESSON in (folder / "endpoint" / "experience.jsonl").read_text()
    reports = [file for name in ("lent.*", "result*.json") for file in folder.glob(name)]
    kept = [*reports, *(file for file in (folder / "endpoint").rglob("*") if file.is_file())]
    expected = {"config.yaml", "train.log", "metrics.jsonl", "comprl.json", "lent.txt", "result_endpoint.json"}
    assert expected <= {file.name for file in kept}
    assert [file for file in kept if CANARY.encode() in uncompressed(file)] == []


def test_a_run_on_an_endpoint_is_evaluated(folder: Path, lent: Steps) -> None:
    found = json.loads((folder / "result_endpoint.json").read_text())
    assert found["step"] == 2 and found["average"].keys() >= {"with", "without"}


def test_questions_are_asked(lent: Steps) -> None:
    asked = {arm: sum(step["comprl/guided/tool_calls"] for step in lines) for arm, lines in lent.items() if arm in ARMS}
    assert max(asked.values()) > 0


def test_the_bank_is_merged(lent: Steps) -> None:
    touched = [f"comprl/operations/{kind}" for kind in ("retained", "merged", "discarded")]
    merged = lent["static_online"][-1]
    assert merged["comprl/merge/passes"] + sum(merged.get(name, 0) for name in touched) > 0


def test_every_environment_family_and_a_users_own_in_one_batch(lent: Steps) -> None:
    (step,) = lent["mix"]
    counts = {name: count for name, count in step.items() if name.startswith("comprl/task/") and "/rollouts" in name}
    shares = {name: count for name, count in counts.items() if name.split("/")[-2] in ("guided", "free")}
    tasks = {name.removeprefix("comprl/task/").rsplit("/", 2)[0] for name in shares}
    assert set(counts) - set(shares) == {f"comprl/task/{task}/rollouts" for task in tasks}
    families = {task.partition("/")[0].partition("-")[0] for task in tasks}  # stand-ins say so behind the hyphen
    assert families == {*env_adapters.list_environments(), "guess"}
    assert set(shares.values()) == {1.0}, "one guided and one free rollout of each"
    assert undocumented(step) == []


def test_an_environment_that_raises_costs_its_own_rollouts(folder: Path, lent: Steps) -> None:
    (step,) = lent["mix"]
    failed = {name: value for name, value in step.items() if name.startswith("comprl/rollouts/failed/")}
    assert failed.pop("comprl/rollouts/failed/environment") == 2.0 and set(failed.values()) == {0.0}
    records = [json.loads(line) for line in (folder / "mix" / "failures.jsonl").read_text().splitlines()]
    assert {(record["task"], record["type"], record["step"]) for record in records} == {("broken", "LookupError", 1)}
    assert len({record["id"] for record in records}) == 2
    assert (folder / "mix" / "train.log").read_text().count('raise LookupError("the secret is lost")') == 1
    assert not (folder / "static_online" / "failures.jsonl").exists()


def test_features_that_are_off_by_default_take_effect(lent: Steps) -> None:
    last = lent["variants"][-1]
    verdicts = {name: count for name, count in last.items() if name.startswith("comprl/verdicts/")}
    # Every guided episode was judged. The model was not trained to do so, so most verdicts cannot be parsed.
    assert sum(verdicts.values()) == sum(step["comprl/guided/rollouts"] for step in lent["variants"])
    assert last["comprl/guides/explored"] > 0
    for step in lent["variants"]:  # every guided success, unless the free half always succeeded
        successes = step["comprl/guided/success"] * step["comprl/guided/rollouts"]
        assert step["comprl/distilled"] == pytest.approx(successes if step["comprl/free/success"] < 1 else 0.0)
    assert not any("comprl/distilled" in step for step in lent["static_online"])
