"""The mix of three tasks on the CPU, as a user starts it, for its twelve steps."""

import json
import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from verl_comprl.record.reader import EVENTS, METRICS

ROOT = Path(__file__).parents[2]
TASKS = {"minihack/room-ultimate", "webshop-synthetic", "alfworld-generated"}
STEPS = 12
PER_TASK = ("guided/rollouts", "guided/success", "guided/actions", "free/rollouts", "free/success", "gap")

pytestmark = [pytest.mark.run, pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mix3")
    command = ["bash", "recipes/run.sh", "mix3", "cpu", "trainer.val_before_train=false"]
    environment = os.environ | {"COMPRL_RECIPES": str(folder)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return folder / "mix3-cpu"


@pytest.fixture(scope="module")
def steps(run: Path) -> list[dict[str, float]]:
    """Metrics of each step."""
    found: dict[int, dict[str, float]] = {}
    for line in map(json.loads, (run / METRICS).read_text().splitlines()):
        found.setdefault(line["step"], {}).update(line["data"])
    return [found[step] for step in range(1, STEPS + 1)]


@pytest.fixture(scope="module")
def journal(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / EVENTS).read_text().splitlines()]


def test_mix3_merges_twice_and_merging_changes_the_bank(steps: list[dict[str, float]]) -> None:
    # Due after steps 4, 8 and 12; a step's metrics are collected before the merge that is due after it begins.
    assert steps[-1]["comprl/merge/passes"] == 2
    assert steps[-1].get("comprl/operations/merged", 0) + steps[-1].get("comprl/operations/discarded", 0) > 0


def test_mix3_asks_and_answers_questions(steps: list[dict[str, float]]) -> None:
    assert steps[-1]["comprl/answers/answered"] > 0
    asking = {task for task in TASKS for step in steps if step.get(f"comprl/task/{task}/guided/tool_calls", 0) > 0}
    assert asking == TASKS


def test_mix3_reports_every_task_in_every_step(steps: list[dict[str, float]]) -> None:
    for number, step in enumerate(steps, start=1):
        names = {name for name in step if name.startswith("comprl/task/")}
        # In the first step the bank is empty at first, so that the guided half of a task may have got nothing.
        wanted = PER_TASK if number > 1 else ("free/rollouts", "free/success")
        assert {f"comprl/task/{task}/{measure}" for task in TASKS for measure in wanted} <= names
        # Equal shares: two prompts of four rollouts each, less those that failed.
        for task in TASKS:
            assert 6 <= sum(step[f"comprl/task/{task}/{half}/rollouts"] for half in ("guided", "free")) <= 8, task
    guided = {task: sum(step[f"comprl/task/{task}/guided/rollouts"] for step in steps) for task in TASKS}
    assert all(count > 2 * (STEPS - 2) for count in guided.values()), guided  # of four a step
    assert {f"comprl/eval/{task}/success_{arm}" for task in TASKS for arm in ("with", "without")} <= steps[-1].keys()


def test_mix3_writes_and_reads_entries_of_all_tasks(journal: list[dict]) -> None:
    origin = {event["entry"]: event["task"] for event in journal if event["event"] == "written"}
    written = Counter(origin.values())
    assert written.keys() == TASKS and min(written.values()) >= STEPS, written
    reads = [event for event in journal if event["event"] == "read"]
    assert {event["task"] for event in reads} == TASKS
    merged = {event["entry"]: event for event in journal if event["event"] == "merged"}
    assert all(set(event["tasks"]) <= TASKS and event["parents"] for event in merged.values())
    assert {event["entry"] for event in reads} <= origin.keys() | merged.keys()
    assert {origin[event["entry"]] for event in reads if event["entry"] in origin} == TASKS
    assert all(event["text"].strip() for event in reads)
    assert any(event["step"] == STEPS for event in reads)


def test_mix3_trains_its_extractor_on_entries_and_answers(steps: list[dict[str, float]]) -> None:
    assert steps[-1]["comprl/extractor/updates"] > 0
    shares = {name for step in steps for name, value in step.items() if "/extractor/share/" in name and value > 0}
    assert {"comprl/extractor/share/distill", "comprl/extractor/share/answer"} <= shares
