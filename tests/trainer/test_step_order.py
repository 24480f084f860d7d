"""Content of a step's checkpoint: verl's own training loop, in each of its modes, with everything else a stub."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_separate_async import HybridEngineMode

from verl_comprl.config.tree import ComprlConfig
from verl_comprl.experience import BankConfig
from verl_comprl.extractor.config import ExtractorConfig, QueueConfig
from verl_comprl.trainer import manager_guard
from verl_comprl.trainer import trainer as trainer_module
from verl_comprl.trainer.checkpoint.folders import CheckpointFolders
from verl_comprl.trainer.experience_runtime import ExperienceRuntime
from verl_comprl.trainer.late_reports import LateReports
from verl_comprl.trainer.manager_guard import ManagerGuard
from verl_comprl.trainer.stopping import RunInterrupted, StopRequest, WaitingStopped
from verl_comprl.trainer.trainer import (
    ComplementaryColocateAsync,
    ComplementarySeparateAsync,
    ComplementarySync,
    ComplementaryTrainerMixin,
)
from verl_comprl.trainer.watchdog.liveness import VitalActors

STEPS = 3


class Events(list[str]):
    """What happened, in order. Every method that is asked of it is written down with its last value."""

    pausing = ()
    checkpoint_parts = ()

    def note_checkpoint(self, folder: object) -> None:
        self.append("note")

    def __getattr__(self, name: str) -> Any:
        def note(*arguments: Any) -> dict[str, float]:
            self.append(" ".join([name, *[str(argument) for argument in arguments if not callable(argument)][-1:]]))
            return {"comprl/closed": float(arguments[0])} if name == "collect" else {}

        return note


def trainer_of(kind: type[ComplementaryTrainerMixin], events: Events, updates: int, logged: list[dict]) -> Any:
    """Return a trainer for three steps that saves every second one and the last."""
    trainer: Any = object.__new__(kind)
    settings = {"total_epochs": 9, "save_freq": 2, "test_freq": -1, "val_before_train": False, "val_only": False}
    names = {"project_name": "p", "experiment_name": "e", "logger": [], "default_local_dir": "nowhere"}
    modes = {mode: {"num_warmup_batches": 0} for mode in ("colocate_async", "separate_async")}
    trainer.config = OmegaConf.create(
        {
            "trainer": settings | names | {"v1": modes},
            "data": {"train_batch_size": 4},
            "global_profiler": {"steps": None},
            "skip": {"rollout_tq": {"enable": False}},
            "actor_rollout_ref": {"actor": {"ppo_mini_batch_size": 4}, "rollout": {"full_determinism": False}},
        }
    )
    trainer.experience_runtime = events
    trainer.comprl = ComprlConfig(bank=BankConfig(path="-"), queue=QueueConfig(folder="-"))
    trainer.progress, trainer._failures = MagicMock(), MagicMock()
    trainer._episodes = SimpleNamespace(
        take=events.record,
        leave=lambda step: None,
        metrics=dict,
        close=lambda step: None,
        settle=lambda: events.append("settle records"),
    )
    trainer._under_way = SimpleNamespace(metrics=lambda trainer: {})
    trainer.end_episodes, trainer.kill_episodes = lambda free_memory=False: events.append("end_episodes"), dict
    trainer.watch_over = lambda *_: None
    trainer._restored_tq_prompt_count, trainer.checkpoint_callback = 0, MagicMock()
    trainer.stop, trainer._saved_step, trainer._saves_failed, trainer._in_order = StopRequest(), -1, 0, False
    trainer._first_step, trainer._resumed_from, trainer.vital = 0, None, VitalActors()
    trainer.trainer_mode, trainer.parameter_sync_step = kind.base_mode, updates
    trainer.global_steps, trainer.total_training_steps, trainer.steps_per_epoch = 0, STEPS, STEPS

    batch = KVBatchMeta(partition_id="train", keys=[], tags=[])
    trainer._step_once, trainer._stretch = lambda *_: trainer._update_actor(batch, {}), 1
    trainer.train_dataloader, trainer.actor_rollout_wg = MagicMock(), SimpleNamespace(workers=[])
    trainer._add_prompts_to_generate = MagicMock()
    trainer._reissue_inflight_prompts = trainer._start_profiling = trainer._shutdown_dump_executor = dict
    trainer._stop_profiling = lambda: setattr(trainer, "prev_step_profile", False)
    trainer._compute_metrics = lambda batch, metrics, *_, **__: logged.append(dict(metrics))
    weights = SimpleNamespace(update_weights=events.publish, resume_generation_replicas=dict)
    trainer.checkpoint_manager = trainer.standalone_checkpoint_manager = weights
    trainer.hybrid_rollout_config, trainer.current_mode = SimpleNamespace(enable_switch=False), HybridEngineMode.TRAINER
    return trainer


def with_stubs(events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace what verl's loop calls."""

    def train(self: Any, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        events.append("train")
        return batch

    monkeypatch.setattr(trainer_base.PPOTrainer, "_update_actor", train)
    for name in ("SkipManager", "Tracking", "ValidationGenerationsLogger", "DapoFilteredRewardTableLogger"):
        monkeypatch.setattr(trainer_base, name, MagicMock())
    monkeypatch.setattr(trainer_base, "tqdm", MagicMock())
    monkeypatch.setattr(trainer_base, "tq", MagicMock())
    monkeypatch.setattr(trainer_base.PPOTrainer, "prepare_step", lambda self: {})
    monkeypatch.setattr(trainer_base.PPOTrainer, "_save_checkpoint", lambda self: events.append("save verl's"))
    monkeypatch.setattr(CheckpointFolders, "begin", lambda self: Path("aside"))
    monkeypatch.setattr(CheckpointFolders, "finish", lambda *_: events.append("name"))


@pytest.mark.parametrize(
    ("kind", "updates"),
    [(ComplementarySync, 1), (ComplementaryColocateAsync, 1), (ComplementarySeparateAsync, 2)],
)
def test_a_checkpoint_has_the_outcomes_and_the_merge_of_its_step(
    kind: type[ComplementaryTrainerMixin], updates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, logged = Events(), []
    with_stubs(events, monkeypatch)
    trainer_of(kind, events, updates, logged).fit(MagicMock())

    # The extractor begins no update between the actor's update of a step that is saved and the end of its checkpoint.
    training, held = ["train"] * updates, ["train"] * (updates - 1) + ["hold_updates", "train"]
    assert events == [
        "begin",
        *(*training, "collect 1", "record 1", "take_turn", "publish 1"),
        *(*held, "hold_updates", "collect 2", "record 2", "take_turn"),
        *("hold_updates", "save verl's", "save 2", "settle records", "name", "note", "resume_updates", "publish 2"),
        *(*held, "hold_updates", "collect 3", "record 3", "take_turn"),
        *("hold_updates", "save verl's", "save 3", "settle records", "name", "note", "resume_updates", "publish 3"),
        *("settle_reports", "end_episodes", "finish", "stop 3600.0"),
    ]
    assert [metrics["comprl/closed"] for metrics in logged] == [1.0, 2.0, 3.0]


def test_outcomes_of_a_step_that_does_not_train_the_actor_start_no_update_before_its_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in the arm ``experience_only``, whose ``trainer.critic_warmup`` never ends."""
    events = Events()
    with_stubs(events, monkeypatch)
    trainer = trainer_of(cast(Any, ComplementarySync), events, 1, [])
    trainer._step_once = lambda *_: KVBatchMeta(partition_id="train", keys=[], tags=[])
    trainer.fit(MagicMock())
    assert "train" not in events
    steps = [events[events.index(f"publish {step - 1}") + 1 : events.index(f"publish {step}")] for step in (2, 3)]
    assert [found[:2] for found in steps] == [["hold_updates", "collect 2"], ["hold_updates", "collect 3"]]
    assert "hold_updates" not in events[: events.index("publish 1")]


def test_on_shared_slots_the_actor_gives_memory_back_before_the_extractors_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events, logged = Events(), []
    with_stubs(events, monkeypatch)
    kind: Any = ComplementarySync
    trainer = trainer_of(kind, events, 1, logged)
    trainer.comprl = trainer.comprl.model_copy(update={"extractor": ExtractorConfig(placement="shared")})
    trainer.free_memory = lambda: events.append("free_memory")
    timings: list[dict[str, float]] = []
    trainer._compute_metrics = lambda batch, metrics, timing, *_, **__: timings.append(dict(timing))
    trainer.fit(MagicMock())
    turns = [number for number, event in enumerate(events) if event == "take_turn"]
    assert len(turns) == STEPS and all(events[number - 1] == "free_memory" for number in turns)
    assert all("extractor_slice" in timing for timing in timings)


def test_a_steps_metrics_are_those_of_all_its_local_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    class Local:
        def __init__(self) -> None:
            self.rows = 0

        def add(self, rows: int) -> None:
            self.rows += rows

        def metrics(self) -> dict[str, float]:
            return {"comprl/rows": float(self.rows)}

    events, logged = Events(), []
    with_stubs(events, monkeypatch)
    monkeypatch.setattr(trainer_module, "LocalUpdates", Local)
    kind: Any = ComplementarySeparateAsync
    trainer = trainer_of(kind, events, 2, logged)
    once = trainer._step_once

    def update(*arguments: Any) -> Any:
        trainer._local.add(3)
        return once(*arguments)

    trainer._step_once = update
    trainer.fit(MagicMock())
    assert [metrics["comprl/rows"] for metrics in logged] == [6.0] * STEPS


def test_a_stop_does_not_wait_for_the_extractor_s_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    events = Events()
    with_stubs(events, monkeypatch)
    kind: Any = ComplementarySync
    trainer = trainer_of(kind, events, 1, [])
    once = trainer._step_once

    def asked_to_stop(*arguments: Any) -> Any:
        trainer.request_stop()
        return once(*arguments)

    trainer._step_once = asked_to_stop
    with pytest.raises(RunInterrupted):
        trainer.fit(MagicMock())
    assert "collect 1" in events and "save 1" in events and "take_turn" not in events


def test_a_stop_is_known_to_what_would_wait_for_an_update_of_the_extractor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that comes while a checkpoint is written or the run ends, and waits by then."""
    events, told = Events(), list[tuple[str, bool, bool]]()
    with_stubs(events, monkeypatch)
    trainer = trainer_of(cast(Any, ComplementarySync), events, 1, [])

    asked_before_updates = list[Callable[[], bool]]()

    def begin(agent_loops: Any, is_stopped: Callable[[], bool]) -> None:
        asked_before_updates.append(is_stopped)

    def save(folder: Any, step: int, is_stopped: Callable[[], bool]) -> None:
        before = is_stopped()
        trainer.request_stop()
        told.append((f"save {step}", before, is_stopped()))

    def stop(seconds: float, is_stopped: Callable[[], bool]) -> None:
        told.append((f"stop {seconds}", is_stopped(), is_stopped()))

    stub: Any = events
    stub.begin, stub.save, stub.stop = begin, save, stop
    with pytest.raises(RunInterrupted):
        trainer.fit(MagicMock())
    assert told == [("save 2", False, True), ("stop 3600.0", True, True)]
    assert [is_stopped() for is_stopped in asked_before_updates] == [True]


def evaluating(trainer: Any, monkeypatch: pytest.MonkeyPatch, run: Callable[[], object] = lambda: None) -> None:
    """Let the trainer evaluate after its last step, which a stop ends; ``run`` is called first."""

    def evaluate(self: Any) -> dict[str, float]:
        trainer.experience_runtime.append("evaluate")
        run()
        if trainer.stop.made:
            raise WaitingStopped
        return {"success": 1.0}

    trainer.config.trainer.test_freq = STEPS
    monkeypatch.setattr(trainer_base.PPOTrainer, "_validate", evaluate)


@pytest.mark.parametrize("save_freq", [2, -1])
@pytest.mark.parametrize("moment", ["last step", "last evaluation", "last episodes"])
def test_a_stop_counts_though_no_step_begins_after_it(
    moment: str, save_freq: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = Events()
    with_stubs(events, monkeypatch)
    trainer = trainer_of(cast(Any, ComplementarySync), events, 1, [])
    trainer.config.trainer.save_freq = save_freq
    evaluating(trainer, monkeypatch, trainer.request_stop if moment == "last evaluation" else lambda: None)
    if moment == "last step":
        trainer._episodes.take = lambda step: step == STEPS and trainer.request_stop()
    if moment == "last episodes":
        cast(Any, events).finish = lambda is_stopped: trainer.request_stop() or {"stopped": is_stopped()}
    with pytest.raises(RunInterrupted, match=rf"stopped after step {STEPS}; checkpoint in .*global_step_{STEPS}"):
        trainer.fit(MagicMock())
    assert events.count("evaluate") == events.count(f"save {STEPS}") == 1
    trainer.progress.finish.assert_not_called()


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize(("step", "saved", "due"), [(STEPS, STEPS, True), (2, 2, True), (1, 1, False), (2, -1, False)])
def test_a_run_that_was_ended_in_an_evaluation_makes_it_when_it_is_resumed(
    tmp_path: Path, step: int, saved: int, due: bool, measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one that continues the checkpoint of another run, or a step after which none is due."""
    events = Events()
    with_stubs(events, monkeypatch)
    trainer = trainer_of(cast(Any, ComplementarySync), events, 1, [])
    evaluating(trainer, monkeypatch)
    trainer.config.trainer.test_freq = 2
    trainer.config.trainer.default_local_dir, trainer.global_steps, trainer._saved_step = str(tmp_path), step, saved
    steps = [step - 1, *([step] if measured else [])]
    (tmp_path / "evaluations.jsonl").write_text("".join(f'{{"step": {step}}}\n' for step in steps))
    trainer.fit(MagicMock())
    assert events.count("train") == STEPS - step
    later = [number for number in range(step + 1, STEPS + 1) if number in (2, STEPS)]
    assert events.count("evaluate") == (due and not measured) + len(later)


def test_a_run_has_as_many_steps_as_it_is_to_have_whatever_its_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    events, logged = Events(), []
    with_stubs(events, monkeypatch)
    trainer = trainer_of(cast(Any, ComplementarySync), events, 1, logged)
    evaluating(trainer, monkeypatch)
    trainer.config.trainer.total_epochs, trainer.steps_per_epoch = 1, 2
    trainer.fit(MagicMock())
    assert len(logged) == STEPS and logged[-1]["success"] == 1.0 and f"save {STEPS}" in events


@pytest.mark.parametrize(
    ("error", "seconds"),
    [(None, 3600.0), (RunInterrupted("stopped"), 3600.0), (ValueError("lost"), 5.0), (KeyboardInterrupt(), 5.0)],
)
def test_a_run_that_does_not_end_in_order_hardly_waits_for_an_update_of_the_extractor(
    error: BaseException | None, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(self: Any, loops: Any) -> None:
        if error is not None:
            raise error

    events = Events()
    trainer = trainer_of(cast(Any, ComplementarySync), events, 1, [])
    monkeypatch.setattr(trainer_base.PPOTrainer, "fit", end)
    with pytest.raises(type(error)) if error is not None else nullcontext():
        trainer.fit(MagicMock())
    assert events[-1] == f"stop {seconds}"


@pytest.mark.parametrize("backend", ["own", "endpoint", "actor"])
def test_the_actors_servers_get_no_new_weights_under_the_extractors_calls(backend: str) -> None:
    """In verl's synchronous mode there are no requests then; the other modes pause the servers themselves."""
    events, kind = Events(), cast(Any, ComplementarySync)
    trainer, settings = trainer_of(kind, events, 1, []), {"backend": backend}
    trainer.comprl = trainer.comprl.model_copy(update={"extractor": ExtractorConfig.model_validate(settings)})
    trainer.checkpoint_manager, trainer.curr_step_profile, trainer.timing_raw = events, False, {}
    trainer.on_sample_end()
    events.append("train")
    trainer.on_step_end()
    pause, resume = (["abort_replicas"], ["resume_generation_replicas"]) if backend == "actor" else ([], [])
    assert events == [*pause, "sleep_replicas", "train", "update_weights 0", *resume]


@pytest.mark.parametrize(("stopped", "late"), [(True, True), (True, False), (False, True)])
def test_servers_do_not_wake_beside_an_update_of_the_extractor_that_a_stop_has_left_behind(
    stopped: bool, late: bool
) -> None:
    events, kind = Events(), cast(Any, ComplementarySync)
    trainer = trainer_of(kind, events, 1, [])
    settings = ExtractorConfig.model_validate({"placement": "shared"})
    trainer.comprl = trainer.comprl.model_copy(update={"extractor": settings})
    trainer.checkpoint_manager, trainer.curr_step_profile, trainer.timing_raw = events, False, {}
    trainer.stop.made, trainer._saved_step = stopped, trainer.global_steps
    trainer.experience_runtime.update_is_late = late
    trainer.on_step_end()
    assert ("update_weights 0" in events) == (not (stopped and late))


@pytest.mark.parametrize("kind", [ComplementarySync, ComplementaryColocateAsync, ComplementarySeparateAsync])
@pytest.mark.parametrize(("backend", "ending"), [("own", "end_episodes"), ("actor", "kill_episodes")])
def test_servers_that_read_the_last_episodes_are_not_paused_before_that(
    kind: type[ComplementaryTrainerMixin], backend: str, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = Events()
    trainer = trainer_of(kind, events, 1, [])
    settings = ExtractorConfig.model_validate({"backend": backend})
    trainer.comprl = trainer.comprl.model_copy(update={"extractor": settings})
    trainer.kill_episodes = events.kill_episodes
    monkeypatch.setattr(trainer_base.PPOTrainer, "fit", lambda self, loops: events.append("train"))
    trainer.fit(MagicMock())
    # The agent loops can be asked for what they have not got to the manager until they are ended.
    assert events == ["begin", "train", "settle_reports", ending, "finish", "kill_episodes", "stop 3600.0"]


def test_collecting_starts_the_merge_that_is_due_before_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []

    def remote(name: str, result: Any) -> Any:
        return SimpleNamespace(remote=lambda *_: (name, result))

    def wait_for(reference: tuple[str, Any], *_: Any) -> Any:
        waited.append(reference[0])
        return reference[1]

    monkeypatch.setattr(manager_guard, "wait_for", wait_for)
    runtime: Any = object.__new__(ExperienceRuntime)
    runtime._comprl = SimpleNamespace(merge=SimpleNamespace(every=2))
    runtime._learner, runtime._collect_timeouts = SimpleNamespace(metrics=dict, note_samples=lambda: None), 0
    runtime._extractor_saves_failed, runtime._late_reports = 0, LateReports()
    runtime.manager = SimpleNamespace(
        collect=remote("collect", {"samples": 5.0}), merge=remote("merge", True), take_warnings=remote("warnings", [])
    )
    runtime._guard = ManagerGuard(runtime.manager, lambda: None)
    assert runtime.collect(3)["comprl/samples"] == 5.0 and "merge" not in waited
    runtime.collect(4)
    assert waited == ["collect", "warnings", "collect", "merge", "warnings"]
