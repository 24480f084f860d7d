"""A real run survives the death of a server of its extractor when everything that could wait for it is due."""

import json
from pathlib import Path
from statistics import median

import pytest
from killing_run import KILL_STEP, QUESTIONS
from running import Run, last_step, read_steps, undocumented

pytestmark = [pytest.mark.run, pytest.mark.timeout(1500)]

STEPS = KILL_STEP + 3
BATCH = 8


def killed_run(folder: Path, name: str, *overrides: str) -> Path:
    """Run ``killing_run.py`` in ``folder/name``, which must end well; returns the file with what it saw."""
    run = Run(
        folder,
        f"trainer.total_training_steps={STEPS}",
        f"trainer.save_freq={KILL_STEP}",
        "trainer.max_actor_ckpt_to_keep=9",
        f"trainer.default_local_dir={folder / name}",
        "trainer.resume_mode=disable",
        "actor_rollout_ref.rollout.n=8",
        f"comprl.merge.every={KILL_STEP}",
        f"comprl.extractor.batch_size={BATCH}",
        "comprl.extractor.max_failures=2",
        *overrides,
        script="killing_run.py",
    )
    try:
        code = run.process.wait(timeout=1200)
    finally:
        run.process.kill()
    assert code == 0, run.text()
    assert run.processes() == []
    return run.probe


def test_the_run_goes_on_when_the_extractors_server_is_killed(folder: Path) -> None:
    killed = json.loads(killed_run(folder, "killed", "comprl.drain_timeout=1").read_text())
    assert killed["step"] == KILL_STEP and killed["samples"] >= BATCH
    steps = read_steps(folder / "killed")
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    before, last = steps[KILL_STEP - 2], steps[-1]
    assert (before["comprl/extractor/away"], before["comprl/extractor/failed"]) == (0, 0)

    # Questions: those that were being answered fail, and later ones do so at once. All rollouts are played.
    answers = killed["answers"]
    assert {status for status, _ in answers["before"]} <= {"answered", "malformed"}
    assert "unavailable" in {status for status, _ in answers["during"]} <= {"answered", "malformed", "unavailable"}
    assert {status for status, _ in answers["after"]} == {"unavailable"}
    assert max(seconds for _, seconds in answers["during"]) < 30  # the client notices that the process has died
    assert median(seconds for _, seconds in answers["after"]) < 0.5
    assert before.get("comprl/answers/unavailable", 0) == 0 < QUESTIONS <= last["comprl/answers/unavailable"]
    failed = [value for step in steps for name, value in step.items() if name.startswith("comprl/rollouts/failed/")]
    assert failed and set(failed) == {0}
    assert all(step["comprl/guided/rollouts"] + step["comprl/free/rollouts"] == 16 for step in steps)

    # Learner: the update that was pending reached the engine, not the server; it tried once more, then stopped.
    assert last["comprl/extractor/updates"] == before["comprl/extractor/updates"] + 1
    assert (last["comprl/extractor/failed"], last["comprl/extractor/given_up"]) == (2, 1)

    # Manager: distillations and the merge wait, and none of the attempts is counted.
    assert last["comprl/extractor/away"] == 1 and last["comprl/extractor/away_seconds"] > 0
    assert last["comprl/queue/depth"] >= 16 and last["comprl/queue/retried"] == last["comprl/queue/dead"] == 0
    assert last["comprl/merge/passes"] == 0

    # The checkpoint of the step is complete; so is the last one, without a server.
    assert last_step(folder / "killed") == STEPS
    state = json.loads((folder / "killed" / f"global_step_{KILL_STEP}" / "comprl/manager.json").read_text())
    assert state["merging"] and state["step"] == KILL_STEP
    assert undocumented({name for step in steps for name in step}) == []


@pytest.mark.long
def test_with_two_servers_only_the_one_that_is_killed_is_away(folder: Path) -> None:
    """Two slots for the extractor, so two ranks that train it, each with a server of one slot."""
    two = ["comprl.extractor.n_gpus_per_node=2", "extractor.actor.ppo_micro_batch_size_per_gpu=4"]
    killed = json.loads(killed_run(folder, "one_of_two", *two, "comprl.drain_timeout=60").read_text())
    assert killed["step"] == KILL_STEP and killed["samples"] >= BATCH
    steps = read_steps(folder / "one_of_two")
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    before, last = steps[KILL_STEP - 2], steps[-1]
    assert (before["comprl/extractor/servers_lost"], before["comprl/extractor/failed"]) == (0, 0)

    # Questions: those to the killed server are answered by the other one, and so are later ones.
    assert {status for moment in killed["answers"].values() for status, _ in moment} <= {"answered", "malformed"}
    assert last.get("comprl/answers/unavailable", 0) == 0 == last["comprl/extractor/away_seconds"]
    assert all(step["comprl/guided/rollouts"] + step["comprl/free/rollouts"] == 16 for step in steps)

    # Learner: the rank without a server takes part in the update and in the sync; the other server gets the weights.
    assert last["comprl/extractor/servers_lost"] == 1
    assert last["comprl/extractor/updates"] > before["comprl/extractor/updates"]
    assert (last["comprl/extractor/failed"], last["comprl/extractor/given_up"]) == (0, 0)

    # Manager: no attempt of a distillation is lost.
    assert last["comprl/queue/retried"] == last["comprl/queue/dead"] == 0
    assert not any(name.startswith("comprl/failures/") for name in last)
    state = folder / "one_of_two" / f"global_step_{STEPS}" / "comprl/manager.json"
    assert json.loads(state.read_text())["step"] == STEPS == last_step(folder / "one_of_two")
    assert undocumented({name for step in steps for name in step}) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        (
            "shared",
            [
                "comprl.extractor.placement=shared",
                "extractor.rollout.free_cache_engine=true",  # its server is away during an update, as on a GPU
                "extractor.rollout.enable_sleep_mode=false",
            ],
        ),
        ("colocate", ["trainer.v1.trainer_mode=comprl_colocate_async"]),
    ],
)
def test_neither_turns_on_one_slot_nor_rollouts_ahead_wait_for_a_dead_server(
    folder: Path, name: str, overrides: list[str]
) -> None:
    killed = json.loads(killed_run(folder, name, *overrides, "comprl.drain_timeout=1").read_text())
    steps = read_steps(folder / name)
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    assert all(step["comprl/guided/rollouts"] + step["comprl/free/rollouts"] == 16 for step in steps)
    assert {status for status, _ in killed["answers"]["after"]} == {"unavailable"}
    assert max(seconds for _, seconds in killed["answers"]["during"]) < 30
    last = steps[-1]
    assert [last[f"comprl/extractor/{name}"] for name in ("failed", "given_up", "away")] == [2, 1, 1]
    assert last["comprl/queue/retried"] == last["comprl/queue/dead"] == 0
    assert last_step(folder / name) == STEPS
    assert undocumented({metric for step in steps for metric in step}) == []
