"""Groups in TransferQueue: those without rows, what a restored queue holds, and prompts left in flight."""

import threading
from collections import defaultdict
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from verl.trainer.ppo.v1 import replay_buffer, trainer_base
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from verl_comprl.errors import Boundary, RolloutError, WaitTimeout
from verl_comprl.platform.waiting import call_within
from verl_comprl.record import RunRecord
from verl_comprl.rollout.failures import PARTITION as FAILED
from verl_comprl.rollout.failures import describe
from verl_comprl.trainer.run_folder import failures
from verl_comprl.trainer.run_folder.failures import FailureLog
from verl_comprl.trainer.step import groups, keys
from verl_comprl.trainer.step.groups import clear_leftovers, episodes_are_running, refill_groups_without_rows
from verl_comprl.trainer.trainer import ComplementaryColocateAsync


class Queue:
    """TransferQueue's keys and tags."""

    def __init__(self) -> None:
        self.partitions: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)

    def prompt(self, uid: str, status: str, *sessions: int, partition: str = "train", step: int = 1) -> None:
        self.partitions[partition][uid] = {"is_prompt": True, "status": status, "global_steps": step}
        self.row(uid, *sessions, partition=partition)

    def row(self, uid: str, *sessions: int, partition: str = "train") -> None:
        self.partitions[partition] |= {f"{uid}_{session}_0": {"status": "success"} for session in sessions}

    def kv_list(self, partition_id: str | None = None) -> dict[str, dict[str, dict[str, Any]]]:
        return {name: dict(keys) for name, keys in self.partitions.items() if partition_id in (None, name)}

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> dict[str, Any]:
        return {"rm_scores": [torch.ones(1) for _ in keys]}

    def kv_clear(self, keys: list[str], partition_id: str) -> None:
        for key in keys:
            del self.partitions[partition_id][key]


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    queue = Queue()
    for module in (groups, keys):
        monkeypatch.setattr(module, "tq", queue)
    monkeypatch.setattr(replay_buffer, "tq", queue)
    return queue


def make_buffer(refill: Any, limit: int) -> Any:
    buffer = ReplayBufferAsync(
        trainer_mode="colocate_async",
        trainer_config=OmegaConf.create(),
        max_off_policy_threshold=4,
        max_off_policy_strategy="wait",
        sampler_kwargs=OmegaConf.create(),
        poll_interval=0.001,
        refill_fn=refill,
    )
    refill_groups_without_rows(buffer, limit)
    return buffer


def test_groups_without_rows_are_replaced(queue: Queue) -> None:
    refilled: list[int] = []

    def refill(count: int) -> None:
        refilled.append(count)
        queue.prompt("new", "finished", 0, 1)

    queue.prompt("empty", "finished")
    queue.prompt("short", "finished", 3)  # stays: the others of its rollouts failed
    batch, metrics = make_buffer(refill, limit=8).sample(global_steps=1, partition_id="train", batch_size=2)
    assert sorted(batch.keys) == ["new_0_0", "new_1_0", "short_3_0"]
    assert refilled == [1]
    assert metrics == {"training/rollout_failure/evicted_samples": 1}
    assert queue.partitions["train"].keys() == set(batch.keys)


def test_a_group_without_rows_does_not_end_a_run_that_filters_groups(queue: Queue) -> None:
    """The filter of verl reads a metric of every finished group and refuses one that has none."""
    buffer = make_buffer(lambda count: queue.prompt("new", "finished", 0), limit=8)
    buffer.filter_groups_metric = "reward"
    queue.prompt("empty", "finished")
    batch, metrics = buffer.sample(global_steps=1, partition_id="train", batch_size=1)
    assert batch.keys == ["new_0_0"] and metrics == {"training/rollout_failure/evicted_samples": 1}


@pytest.mark.parametrize("option", [{"filter_groups_metric": "reward"}, {"sync_refill_failed_groups": True}])
def test_so_it_is_in_a_synchronous_run_that_filters_groups_or_replaces_failed_ones(
    queue: Queue, option: dict[str, Any]
) -> None:
    buffer = ReplayBuffer(
        trainer_mode="sync",
        trainer_config=OmegaConf.create(),
        max_off_policy_threshold=None,
        max_off_policy_strategy="wait",
        sampler_kwargs=OmegaConf.create(),
        poll_interval=0.001,
        refill_fn=lambda count: queue.prompt("new", "finished", 0),
        train_batch_size=1,
        gen_batch_size=1,
        **option,
    )
    refill_groups_without_rows(buffer, limit=8)
    queue.prompt("empty", "finished")
    batch, metrics = buffer.sample(global_steps=1, partition_id="train", batch_size=1)
    assert batch.keys == ["new_0_0"] and metrics == {"training/rollout_failure/evicted_samples": 1}


def test_a_sampler_of_the_users_own_is_left_as_it_is() -> None:
    refill_groups_without_rows(SimpleNamespace(sample=None), limit=8)


def test_an_evaluation_takes_groups_as_they_are(queue: Queue) -> None:
    queue.prompt("empty", "finished", partition="val")
    batch, _ = make_buffer(None, limit=8).sample(global_steps=1, partition_id="val", batch_size=1)
    assert batch.keys == []


@pytest.mark.parametrize("status", ["finished", "failure"])
def test_a_run_in_which_everything_fails_ends(queue: Queue, status: str) -> None:
    """With verl's status "failure" too, which is that of groups whose reward function raises."""
    submitted = 2

    def refill(count: int) -> None:
        nonlocal submitted
        for _ in range(count):
            submitted += 1
            # One with rows in between, which begins the count again.
            good = submitted == 4
            queue.prompt(f"p{submitted}", "finished" if good else status, *([0] if good else []))
            assert submitted < 100, "it goes on for ever"

    for number in (1, 2):
        queue.prompt(f"p{number}", status)
    with pytest.raises(RuntimeError, match="all rollouts of 4 prompts in a row have failed"):
        make_buffer(refill, limit=4).sample(global_steps=1, partition_id="train", batch_size=2)
    # p1 to p3, then p4 with rows; p5 to p7 fill up for those which came with it, and the fourth ends the run.
    assert submitted > 5


def test_a_restored_queue_loses_what_nobody_reads(queue: Queue, tmp_path: Path) -> None:
    queue.row("trained", 0, 1)  # of the checkpointed step: verl clears rows after it has saved
    queue.prompt("finished", "finished", 0, 1)
    queue.prompt("running", "running", 0)
    queue.prompt("asked", "running", 0, partition="val")
    queue.partitions["failures"]["x"] = {"type": "ValueError"}
    queue.partitions["comprl_episodes"] = {"trained_0": {}, "finished_1": {}, "running_0": {}, "asked_0": {}}
    assert clear_leftovers(tmp_path) == 6
    assert queue.partitions["comprl_episodes"].keys() == {"finished_1", "running_0"}
    assert queue.partitions["train"].keys() == {"finished", "finished_0_0", "finished_1_0", "running", "running_0_0"}
    assert queue.partitions["val"] == {} and queue.partitions["failures"]
    assert clear_leftovers(tmp_path) == 0


def test_a_queue_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr(keys, "tq", SimpleNamespace(kv_list=gate.wait))
    monkeypatch.setattr(keys, "call_within", lambda call, seconds, what: call_within(call, 0.01, what))
    with pytest.raises(WaitTimeout, match="TransferQueue to list its keys"):
        episodes_are_running()
    gate.set()


def failed_in(metrics: dict[str, float]) -> float:
    return metrics["comprl/rollouts/failed/environment"]


def test_a_failed_rollout_counts_once_though_the_checkpoint_has_its_record(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails while its step ends: the queue is saved, then its record is written and counted with the step."""
    monkeypatch.setattr(failures, "tq", queue)
    error = RolloutError(Boundary.ENVIRONMENT)

    def fail(uid: str) -> None:
        tag = asdict(describe({"uid": uid, "session_id": 0, "global_steps": 3}, error))
        queue.partitions[FAILED][f"{uid}_0"] = tag | {"boundary": "environment"}

    fail("before")
    saved, step_3, step_4 = deepcopy(queue.partitions), {}, {}
    FailureLog(tmp_path).collect(step_3)
    assert failed_in(step_3) == 1.0

    trainer: Any = object.__new__(ComplementaryColocateAsync)
    names = {"default_local_dir": str(tmp_path)}
    trainer.config, trainer._resumed_from = OmegaConf.create({"trainer": names}), tmp_path / "global_step_3"
    trainer.global_steps = 3
    monkeypatch.setattr(trainer_base.PPOTrainer, "_load_checkpoint", lambda self: setattr(queue, "partitions", saved))
    trainer._load_checkpoint()
    fail("after")
    FailureLog(tmp_path).collect(step_4)
    assert failed_in(step_4) == 1.0
    assert [record["id"] for record in RunRecord(tmp_path).failures()] == ["before_0", "after_0"]


def test_a_failed_rollout_that_nobody_has_counted_counts_after_a_resume(queue: Queue, tmp_path: Path) -> None:
    """The run was killed between the two."""
    queue.partitions[FAILED]["p_0"] = {"type": "ValueError"}
    (tmp_path / "failures.jsonl").write_text('{"id": "other_0", "step": 1}\n')
    assert clear_leftovers(tmp_path) == 0 and queue.partitions[FAILED]


def test_running_episodes(queue: Queue) -> None:
    queue.row("trained", 0)
    queue.prompt("finished", "finished", 0)
    assert not episodes_are_running()
    queue.prompt("pending", "pending", partition="val")
    assert episodes_are_running()


@pytest.mark.parametrize(
    ("restored", "submitted"),
    [
        (0, [6, 6, 6]),  # a new run
        (9, [6, 6, 6]),  # from a checkpoint at the end of a step: one and a half batches are ahead, as they should be
        (15, [0, 6, 6]),  # stopped while it waited for a step's rollouts
        (12, [3, 6, 6]),  # stopped after one of two local updates
        (21, [0, 0, 6]),  # stopped twice, by a release that did not count
    ],
)
def test_a_stop_leaves_no_more_prompts_in_flight(
    restored: int, submitted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer: Any = object.__new__(ComplementaryColocateAsync)
    mode = {"colocate_async": {"num_warmup_batches": 1.5}}
    trainer.config = OmegaConf.create({"trainer": {"v1": mode}, "data": {"train_batch_size": 6}})
    trainer.trainer_mode, trainer._restored_tq_prompt_count, trainer.global_steps = "colocate_async", restored, 1
    trainer._add_async_warmup_batches = trainer._add_metrics_file = lambda *_: None
    counts: list[int] = []
    trainer._add_prompts_to_generate = counts.append
    monkeypatch.setattr(trainer_base.PPOTrainer, "_add_batch_to_generate", lambda self: counts.append(6))
    trainer.on_train_begin()
    found = []
    for _ in submitted:
        before = sum(counts)
        trainer.prepare_step()
        found.append(sum(counts) - before)
    assert found == submitted
