"""Arms in real runs: the baseline against verl's own trainer, and two steps of every other arm."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from running import ROOT, START_SECONDS, Run, run_environment, undocumented
from safetensors.torch import load_file

Step = dict[str, Any]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


STEPS = 4
# One prompt per step: verl draws the order of several anew in every run, and sums are not associative.
KEPT = (
    "arm=baseline",
    "data.train_batch_size=1",
    "actor_rollout_ref.actor.ppo_mini_batch_size=1",
    f"trainer.total_training_steps={STEPS}",
    f"trainer.save_freq={STEPS}",
    "skip.rollout_tq.enable=true",
    f"skip.rollout_tq.steps={list(range(1, STEPS + 1))}".replace(" ", ""),
)


def start(folder: Path, name: str, script: str) -> Run:
    places = (f"skip.rollout_tq.dump_dir={folder / 'rollouts'}", f"trainer.default_local_dir={folder / name}")
    return Run(folder, *KEPT, *places, script=script)


def finish(run: Run) -> None:
    try:
        assert run.process.wait(timeout=START_SECONDS) == 0, run.text()
    finally:
        run.process.kill()


def weights(folder: Path) -> dict[str, torch.Tensor]:
    file = folder / f"global_step_{STEPS}" / "actor" / "model_world_size_1_rank_0.pt"
    state = torch.load(file, weights_only=False)  # verl's own format
    return {name: getattr(value, "_local_tensor", value) for name, value in state.items()}


def test_the_baseline_is_verls_grpo_bit_for_bit(folder: Path) -> None:
    """The same rollouts: made and kept by verl's trainer alone, and played back by verl itself through ours."""
    finish(start(folder, "plain", "plain_run.py"))
    rollouts = sorted((folder / "rollouts").rglob("tq_batch.pt"))
    made = [file.stat().st_mtime_ns for file in rollouts]
    assert len(rollouts) == STEPS
    ours = start(folder, "ours", "")
    finish(ours)
    assert [file.stat().st_mtime_ns for file in rollouts] == made, "a run made rollouts of its own"
    assert "bank entries" not in ours.text() and not (folder / "ours" / "bank").exists()
    theirs, same = weights(folder / "plain"), weights(folder / "ours")
    assert theirs.keys() == same.keys()
    assert all(torch.equal(theirs[name], same[name]) for name in theirs)
    before = load_file(folder / "models" / "actor" / "model.safetensors")
    assert any(not torch.equal(before[name], same[name]) for name in before), "nothing was learnt"


# Beside the baseline, and the method itself, which is in test_training_run.
ARMS: dict[str, list[str]] = {
    "offline": ["arm=offline"],
    "static_online": ["arm=static_online", "comprl.merge.every=1"],
    "experience_only": ["arm=experience_only"],
    "all_guided": ["arm=all_guided"],
    "shared_baseline": ["arm=shared_baseline"],
    "no_merge": ["arm=no_merge"],
    "no_search_and_ask": ["arm=no_search_and_ask"],
    # Everything that is off by default, with a judgement that fits into the model's context.
    "variants": [
        "comprl.actor_critic.enabled=true",
        "comprl.actor_critic.train=true",
        "comprl.actor_critic.max_tokens=16",
        "comprl.self_distillation.weight=0.1",
        "comprl.extractor.utility=relative",
        "comprl.exploration=0.5",
    ],
}


@pytest.fixture(scope="module")
def initial_bank(folder: Path) -> Path:
    """A snapshot with one good lesson in many words, so that guided episodes succeed now and then."""
    code = f"""
import asyncio
from verl_comprl.experience import *
async def main():
    bank = await ExperienceBank.open(BankConfig(path={str(folder / "seed")!r}), await make_embedder("builtin"))
    lesson = "Walk towards unseen cells until the staircase shows up. Explore cells that you have not seen yet."
    adds = [Add(title="Search a dark room", content=lesson + " Do not waste turns." * n) for n in range(4)]
    await bank.apply(adds, call_id="", listed=[], task="t", environment="minihack", step=0, weight_version=0)
    await bank.save({str(folder / "initial")!r})
    await bank.close()
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    return folder / "initial"


@pytest.fixture(scope="module")
def steps(folder: Path, initial_bank: Path) -> dict[str, list[Step]]:
    """The metrics of two steps of each arm."""
    places = {name: f"trainer.default_local_dir={folder / 'arms' / name}" for name in ARMS}
    common = ["trainer.total_training_steps=2", "trainer.val_before_train=false", "trainer.test_freq=-1"]
    common += ["trainer.save_freq=-1", "trainer.logger=[console]", "trainer.resume_mode=disable"]
    common += ["data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2"]
    common += [
        "comprl.drain_timeout=0",
        "comprl.warmup_steps=0",
        "comprl.extractor.batch_size=8",
        f"comprl.initial_bank={initial_bank}",
    ]
    arms = {name: [*overrides, places[name]] for name, overrides in ARMS.items()}
    (folder / "arms.json").write_text(json.dumps({"common": common, "arms": arms}))
    command = [sys.executable, str(ROOT / "tests/trainer/arms_run.py"), str(folder / "arms.json")]
    with (folder / "arms.txt").open("w") as output:
        subprocess.run(
            [*command, str(folder / "arms.jsonl")],
            cwd=ROOT,
            env=run_environment(folder),
            stdout=output,
            stderr=output,
            timeout=1200,
        )
    found: dict[str, list[Step]] = {name: [] for name in ARMS}
    for line in (folder / "arms.jsonl").read_text().splitlines():
        step = json.loads(line)
        found[step["arm"]].append(step)
    assert all(len(lines) == 2 for lines in found.values()), (folder / "arms.txt").read_text()[-5000:]
    return found


@pytest.mark.long
@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_runs(steps: dict[str, list[Step]], arm: str) -> None:
    last = steps[arm][-1]
    assert last["step"] == 2
    assert undocumented(last) == []
    assert last["comprl/guided/rollouts"] > 0
    assert last["training/rollout_probs_diff_mean"] < 1e-2 or arm == "variants"
    assert (last["comprl/free/rollouts"] == 0) == (arm == "all_guided")
    assert ("actor/grad_norm" in last) == (arm != "experience_only")
    assert ("comprl/guided/advantage_std" in last) == (arm != "shared_baseline")
    assert last["comprl/bank/size"] == 4 if arm == "offline" else last["comprl/operations/added"] > 0


@pytest.mark.long
@pytest.mark.parametrize("arm", ["offline", "static_online"])
def test_a_frozen_extractor_does_not_learn(steps: dict[str, list[Step]], arm: str) -> None:
    assert len({step["comprl/extractor/updates"] for step in steps[arm]}) == 1


@pytest.mark.long
def test_nobody_asks_where_there_is_no_tool(steps: dict[str, list[Step]]) -> None:
    assert [step["comprl/guided/tool_calls"] for step in steps["no_search_and_ask"]] == [0.0, 0.0]
    asked = {arm: sum(step["comprl/guided/tool_calls"] for step in lines) for arm, lines in steps.items()}
    assert max(asked.values()) > 0


@pytest.mark.long
def test_the_bank_is_merged_but_for_the_arm_that_does_not(steps: dict[str, list[Step]]) -> None:
    assert steps["no_merge"][-1]["comprl/merge/passes"] == 0
    touched = [f"comprl/operations/{kind}" for kind in ("retained", "merged", "discarded")]
    merged = steps["static_online"][-1]
    assert merged["comprl/merge/passes"] + sum(merged.get(name, 0) for name in touched) > 0


@pytest.mark.long
def test_what_is_off_by_default_is_at_work(steps: dict[str, list[Step]]) -> None:
    last = steps["variants"][-1]
    verdicts = {name: count for name, count in last.items() if name.startswith("comprl/verdicts/")}
    # Every guided episode was judged; this model has never learned to, so most of it cannot be read.
    assert sum(verdicts.values()) == sum(step["comprl/guided/rollouts"] for step in steps["variants"])
    assert last["comprl/guides/explored"] > 0
    assert sum(step["comprl/distilled"] for step in steps["variants"]) > 0
    assert not any("comprl/distilled" in step for step in steps["static_online"])
