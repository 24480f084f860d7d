"""A run that was asked to stop leaves with a checkpoint of what has been trained, also while it waits for rollouts."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from ray.exceptions import ActorDiedError
from torchdata.stateful_dataloader import StatefulDataLoader
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import replay_buffer, trainer_base
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync
from verl.trainer.ppo.v1.trainer_separate_async import HybridEngineMode, PPOTrainerSeparateAsync

from verl_comprl.display.progress import Progress
from verl_comprl.errors import WaitTimeout
from verl_comprl.experience import EmbedderUnavailable, StoreError, StoreUnavailable
from verl_comprl.manager.actor import MANAGER_SECONDS
from verl_comprl.trainer import stoppable, stopping
from verl_comprl.trainer.experience_runtime import ExperienceRuntime
from verl_comprl.trainer.late_reports import LateReports
from verl_comprl.trainer.stopping import RunInterrupted, StopRequest
from verl_comprl.trainer.task_sampler import TaskSampler
from verl_comprl.trainer.trainer import ComplementarySeparateAsync, ComplementarySync
from verl_comprl.trainer.watchdog.liveness import VitalActors

BATCH = KVBatchMeta(partition_id="train", keys=[], tags=[])


@pytest.fixture
def events() -> list[str]:
    """What happened, in order."""
    return []


def make_trainer(kind: type, folder: Path, events: list[str], updates: int = 1) -> Any:
    """Return a trainer before its fifth step, with nothing but what the decision needs."""
    trainer: Any = object.__new__(kind)
    trainer.config = OmegaConf.create(
        {
            "trainer": {"default_local_dir": str(folder), "val_only": False},
            "data": {"train_batch_size": updates},
            "actor_rollout_ref": {"rollout": {}},
        }
    )
    trainer.progress, trainer.stop, trainer.vital = Progress(), StopRequest(), VitalActors()
    trainer.global_steps, trainer.total_training_steps, trainer.parameter_sync_step = 5, 8, updates
    trainer._saved_step, trainer._first_step, trainer.local_trigger_step = -1, 1, updates - 1
    trainer._left_over, trainer.current_mode, trainer.actor_rollout_wg = 0, None, SimpleNamespace(workers=[])
    trainer._save_checkpoint = lambda: events.append(f"save {trainer.global_steps}")
    trainer.end_episodes = lambda free_memory=False: events.append("end episodes")
    trainer.prepare_step = trainer.take_back_prompts = dict
    trainer.experience_runtime = SimpleNamespace(
        collect=lambda step: events.append(f"collect {step}") or {},
        settle_reports=lambda: events.append("settle reports"),
    )
    trainer.left = []
    trainer._episodes = SimpleNamespace(leave=trainer.left.append)
    return trainer


@pytest.fixture
def trainer(tmp_path: Path, events: list[str]) -> Any:
    return make_trainer(ComplementarySync, tmp_path, events)


def test_between_steps_it_stops_with_the_checkpoint_that_there_is(trainer: Any, tmp_path: Path, events: list) -> None:
    trainer._saved_step = 4
    trainer.on_step_begin()
    trainer.request_stop()
    with pytest.raises(RunInterrupted, match=f"stopped after step 4; checkpoint in {tmp_path}/global_step_4"):
        trainer.on_step_begin()
    assert events == ["end episodes"]


def test_between_steps_it_writes_the_checkpoint_that_is_missing(trainer: Any, events: list[str]) -> None:
    """The request came in an evaluation, after the end of step 4."""
    trainer._saved_step = 2
    trainer.request_stop()
    with pytest.raises(RunInterrupted, match=r"stopped after step 4; checkpoint in .*global_step_4"):
        trainer.on_step_begin()
    assert events == ["settle reports", "end episodes", "save 4"]


def test_without_a_trained_step_there_is_no_checkpoint(trainer: Any, events: list[str]) -> None:
    trainer.global_steps = 1
    trainer.request_stop()
    with pytest.raises(RunInterrupted, match="stopped before a step was trained; there is no checkpoint"):
        trainer.on_step_begin()
    assert events == ["end episodes"]


def waiting_buffer(kind: type, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return verl's buffer with one prompt that is never finished, as with an environment that hangs."""
    rows = {"train": {"p": {"is_prompt": True, "status": "running", "global_steps": 5}}}
    monkeypatch.setattr(replay_buffer, "tq", SimpleNamespace(kv_list=lambda: rows))
    return kind(
        trainer_mode="",
        trainer_config=None,
        max_off_policy_threshold=4,
        max_off_policy_strategy="wait",
        sampler_kwargs=None,
        poll_interval=0.01,
    )


@pytest.mark.parametrize("kind", [ReplayBuffer, ReplayBufferAsync])
def test_waiting_for_rollouts_ends_and_nothing_of_the_step_counts(
    trainer: Any, events: list[str], kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = waiting_buffer(kind, monkeypatch)
    trainer.stop.interrupts(buffer)
    polled = buffer._sync_metadata_from_transfer_queue

    def poll() -> None:
        polled()
        events.append("poll")
        if events.count("poll") == 3:
            trainer.request_stop()

    buffer._sync_metadata_from_transfer_queue = poll
    trainer._step_once = lambda *_: buffer.sample(global_steps=5, partition_id="train", batch_size=1)
    with pytest.raises(RunInterrupted, match=r"stopped after step 4; checkpoint in .*global_step_4"):
        trainer.step({}, {})
    assert events == ["poll", "poll", "poll", "settle reports", "end episodes", "save 4"]


@pytest.mark.parametrize(
    ("kind", "saved", "deterministic", "step"),
    [
        (ComplementarySync, -1, False, 4),  # the checkpoint of step 4 is written now, and its bank knows them
        (ComplementarySync, 4, False, 5),  # it has been written before they were played
        (ComplementarySync, -1, True, 5),  # they are played again under the same ids
        (ComplementarySeparateAsync, -1, False, None),  # they are in the checkpoint's queue
    ],
)
def test_episodes_of_a_step_that_is_left_are_recorded_where_a_resume_keeps_them_if_the_checkpoint_does(
    tmp_path: Path, events: list, kind: type, saved: int, deterministic: bool, step: int | None
) -> None:
    trainer = make_trainer(kind, tmp_path, events)
    trainer._saved_step = saved
    trainer.config.actor_rollout_ref.rollout.full_determinism = deterministic
    trainer.end_episodes = lambda free_memory=False: events.append(f"end episodes, {trainer.left} recorded")

    def wait(*_: Any) -> None:
        raise stopping.WaitingStopped

    trainer._step_once = wait
    with pytest.raises(RunInterrupted, match="stopped after step 4"):
        trainer.step({}, {})
    assert trainer.left == ([] if step is None else [step])
    assert "end episodes, [] recorded" in events, "one that is running may still be counted"


@pytest.mark.parametrize("drawn", [0, 1, 2])  # 2: the step begins a new epoch
@pytest.mark.parametrize("shuffled", [False, True])
def test_prompts_that_were_drawn_for_a_step_that_is_left_are_drawn_again(
    trainer: Any, events: list[str], drawn: int, shuffled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loader() -> StatefulDataLoader:
        sampler = TaskSampler(["a", "b"] * 2, seed=1)
        rows: Any = list(range(4))
        return StatefulDataLoader(rows, batch_size=2, sampler=sampler if shuffled else None)

    def draw(trainer: Any) -> list[int]:
        return trainer._fetch_one_gen_batch()["row"].tolist()

    def make(loaded: StatefulDataLoader) -> Any:
        loaded.collate_fn = lambda rows: {"row": torch.tensor(rows), "raw_prompt": rows}
        trainer.train_dataloader, trainer.train_dataloader_it = loaded, None
        return trainer

    for name in ("prepare_step", "take_back_prompts"):
        delattr(trainer, name)
    monkeypatch.setattr(trainer_base.PPOTrainer, "prepare_step", lambda self: events.append(f"draw {draw(self)}"))

    def wait(*_: Any) -> None:
        raise stopping.WaitingStopped

    trainer._step_once = wait
    make(loader())
    for _ in range(drawn):
        draw(trainer)
    with pytest.raises(RunInterrupted, match="stopped after step 4"):
        trainer.step({}, {})
    resumed = loader()
    resumed.load_state_dict(trainer.train_dataloader.state_dict())  # as in verl's checkpoint
    assert events == [f"draw {draw(make(resumed))}", "settle reports", "end episodes", "save 4"]


def test_a_step_of_which_an_update_was_made_counts(tmp_path: Path, events: list[str]) -> None:
    trainer = make_trainer(ComplementarySeparateAsync, tmp_path, events, updates=2)

    def update(*_: Any) -> KVBatchMeta:
        if trainer.local_trigger_step == 1:
            raise stopping.WaitingStopped
        events.append("update")
        return BATCH

    trainer._step_once = update
    with pytest.raises(RunInterrupted, match="stopped after step 5"):
        trainer.step({}, {})
    assert events == ["update", "collect 5", "settle reports", "end episodes", "save 5"]


def test_a_stop_between_local_updates_is_seen_although_the_next_batch_waits(
    tmp_path: Path, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks nobody then, and verl's trainer would take all further updates of the step."""
    trainer = make_trainer(ComplementarySeparateAsync, tmp_path, events, updates=3)
    monkeypatch.setattr(PPOTrainerSeparateAsync, "on_sample_begin", lambda self: events.append("sample"))

    def update(*_: Any) -> KVBatchMeta:
        trainer.on_sample_begin()
        trainer.request_stop()
        return BATCH

    trainer._step_once = update
    with pytest.raises(RunInterrupted, match="stopped after step 5"):
        trainer.step({}, {})
    assert events == ["sample", "collect 5", "settle reports", "end episodes", "save 5"]


def test_a_stop_before_the_first_update_is_not_taken_for_one_in_the_step_before(tmp_path: Path, events: list) -> None:
    """``separate_async`` may wait before a step's first update, when verl's counter is that of the last step."""
    trainer = make_trainer(ComplementarySeparateAsync, tmp_path, events, updates=2)

    def wait() -> dict:
        raise stopping.WaitingStopped

    trainer.prepare_step = wait
    with pytest.raises(RunInterrupted, match="stopped after step 4"):
        trainer.step({}, {})
    assert events == ["settle reports", "end episodes", "save 4"]


def test_an_evaluation_ends_without_a_result(trainer: Any, events: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(self: Any) -> dict:
        raise stopping.WaitingStopped

    monkeypatch.setattr(trainer_base.PPOTrainer, "_validate", evaluate)
    assert trainer._validate() == {} and events == []  # the next step will not begin
    trainer._first_step, trainer.global_steps, trainer._saved_step = 0, 4, 4
    with pytest.raises(RunInterrupted, match="stopped after step 4"):
        trainer._validate()


def test_an_evaluation_of_a_checkpoint_that_is_stopped_writes_none(
    trainer: Any, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``comprl evaluate`` makes it: in a folder of its own, which has no checkpoint of the step."""

    def evaluate(self: Any) -> dict:
        raise stopping.WaitingStopped

    monkeypatch.setattr(trainer_base.PPOTrainer, "_validate", evaluate)
    trainer.config.trainer.val_only, trainer._first_step = True, 0
    with pytest.raises(RunInterrupted, match="stopped before the evaluation had ended; it has no result"):
        trainer._validate()
    assert events == ["end episodes"] and trainer.left == []


def test_agent_loops_end_before_their_servers(trainer: Any, events: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An aborted turn may end an episode, whose outcome must not reach the bank."""
    del trainer.end_episodes
    trainer.agent_loop_manager = SimpleNamespace(agent_loop_workers=["loop"])
    servers = SimpleNamespace(
        abort_replicas=lambda reject_request: events.append("abort"), sleep_replicas=lambda: events.append("sleep")
    )
    trainer.checkpoint_manager = servers
    monkeypatch.setattr(stoppable, "ray", SimpleNamespace(kill=lambda worker: events.append(f"kill {worker}")))
    running = True
    monkeypatch.setattr(stoppable, "episodes_are_running", lambda: running)
    trainer.end_episodes()
    assert events == ["kill loop", "abort", "sleep"]
    running = False
    trainer.end_episodes()
    assert len(events) == 3


@pytest.mark.parametrize("failure", [None, ActorDiedError()])
def test_servers_that_cannot_be_paused_do_not_keep_a_run_from_stopping(
    trainer: Any, events: list[str], failure: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def abort(reject_request: bool) -> None:
        if failure is not None:
            raise failure
        threading.Event().wait(40)

    del trainer.end_episodes
    trainer.kill_episodes = lambda: True
    trainer.checkpoint_manager = SimpleNamespace(abort_replicas=abort)
    monkeypatch.setattr(stoppable, "SERVER_SECONDS", 0.05)
    trainer.request_stop()
    started = time.monotonic()
    with pytest.raises(RunInterrupted, match="stopped after step 4"):
        trainer.on_step_begin()
    assert events == ["settle reports", "save 4"] and time.monotonic() - started < 20


@pytest.mark.parametrize(
    "failure",
    [WaitTimeout("the manager", 30), StoreUnavailable("no route"), EmbedderUnavailable("quota"), StoreError("refused")],
)
def test_a_manager_that_cannot_confirm_episodes_does_not_keep_a_run_from_its_checkpoint(
    trainer: Any,
    events: list[str],
    failure: Exception,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One that hangs, or has died while its store is away; saving waits for it, and is tried again."""
    runtime: Any = object.__new__(ExperienceRuntime)
    limits: list[float] = []

    def ask(call: Any, seconds: float, what: str) -> None:
        limits.append(seconds)
        raise failure

    runtime._guard, runtime.manager = SimpleNamespace(ask=ask), SimpleNamespace(metrics=SimpleNamespace(remote=None))
    runtime._comprl = SimpleNamespace(work_timeout=3600.0)
    runtime._late_reports = late = LateReports()
    late._counts[0] = (3, 0)
    monkeypatch.setattr(late, "settle", lambda seconds: False)
    trainer.experience_runtime = runtime
    trainer.request_stop()
    with pytest.raises(RunInterrupted, match="stopped after step 4"):
        trainer.on_step_begin()
    assert events == ["end episodes", "save 4"] and limits == [MANAGER_SECONDS]
    assert capsys.readouterr().out == f"3 episodes are not confirmed by the manager ({failure})\n"
    with pytest.raises(type(failure)):  # which ends that attempt to save, and no other
        runtime._save_manager("folder")
    assert limits[1:] == [3600.0]


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize(
    ("kind", "mode", "freed"),
    [
        (ComplementarySync, None, ["abort", "sleep"]),
        # The servers on slots of their own keep their memory, which the engine does not need.
        (ComplementarySeparateAsync, HybridEngineMode.TRAINER, ["abort separate"]),
        # Those on the trainer's slots have it while they help to roll out.
        (ComplementarySeparateAsync, HybridEngineMode.ROLLOUT, ["abort separate", "unlist", "abort", "sleep"]),
    ],
)
def test_a_stop_frees_the_servers_memory_for_the_checkpoint(
    tmp_path: Path, events: list[str], kind: type, mode: HybridEngineMode | None, freed: list[str], running: bool
) -> None:
    """Also if they answer the extractor's calls: nobody waits for these after a stop; and between two steps."""
    trainer = make_trainer(kind, tmp_path, events)
    del trainer.end_episodes
    extractor = SimpleNamespace(backend="actor")
    trainer.comprl = SimpleNamespace(experience=True, has_extractor_engine=False, extractor=extractor)
    trainer.kill_episodes, trainer.current_mode = lambda: running, mode

    def servers(name: str = "") -> Any:
        def told(order: str) -> Any:
            return lambda **_: events.append(order + name)

        return SimpleNamespace(abort_replicas=told("abort"), sleep_replicas=told("sleep"))

    trainer.checkpoint_manager, trainer.standalone_checkpoint_manager = servers(), servers(" separate")
    trainer.remove_replicas_from_balancer = lambda: events.append("unlist")
    trainer.stop.made = True
    with pytest.raises(RunInterrupted):
        trainer.on_step_begin()
    assert events == ["settle reports", *freed, "save 4"]
