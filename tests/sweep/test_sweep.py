"""The order of a sweep: what is trained, skipped, retried and reported, with trainers that are scripted."""

import itertools
import json
import re
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from verl_comprl.config.reading import ConfigError
from verl_comprl.config.saved import FILE
from verl_comprl.sweep.checked_run import FINISHED, UNFINISHED, CheckedRun
from verl_comprl.sweep.runs import Run
from verl_comprl.sweep.sweep import Sweep
from verl_comprl.trainer.stopping import RunInterrupted
from verl_comprl.trainer.watchdog.ending import RunHung
from verl_comprl.trainer.watchdog.liveness import ProcessLost


class Script:
    """What the runs do; also the engines, and what is started and stopped."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.failing: dict[str, BaseException] = {}
        self.stopped = ""
        """Runs that are asked to stop, which leave with what is in ``failing`` or finish all the same."""

    def lend_actor(self, trainer: "ScriptedTraining") -> None:
        self.events.append(f"lend {trainer.name}")


class ScriptedTraining:
    """One run."""

    def __init__(self, script: Script, name: str) -> None:
        self.script, self.name, self.trainer = script, name, self
        self.was_stopped = name in script.stopped

    def prepare(self) -> None:
        self.script.events.append(f"prepare {self.name}")

    def watched(self, display: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def run(self, display: Any, *, guided_fraction: float | None, on_start: Callable[[int], None]) -> None:
        with display.phase("start", "starting"):
            on_start(1)
        self.script.events.append(f"train {self.name}")
        if self.name in self.script.failing:
            raise self.script.failing[self.name]
        display.step(1, 1, {"comprl/free/success": 0.5, "actor/lr": 0.1})
        display.finish({"comprl/bank/size": 3}, {})

    def release(self) -> None:
        self.script.events.append(f"release {self.name}")


class ScriptedSweep(Sweep):
    """Starts nothing."""

    def __init__(self, script: Script, runs: list[CheckedRun], results: Path) -> None:
        super().__init__(runs, results)
        self.script = script

    def make_training(self, run: CheckedRun) -> Any:
        return ScriptedTraining(self.script, run.run.name)

    def _start_ray(self, run: CheckedRun) -> None:
        if self._engines is None:
            self.script.events.append("start")
            self._engines = self.script

    def close(self) -> None:
        if self._engines is not None:
            self.script.events.append("close")
        self._engines = self._next = None


@pytest.fixture
def sweep(tmp_path: Path) -> Callable[..., ScriptedSweep]:
    """Make a sweep of the runs a, b and c, again or with other overrides of all; those in ``own`` have own engines."""

    def make(script: Script, *overrides: str, own: str = "") -> ScriptedSweep:
        runs = []
        for name in "abc":
            config = OmegaConf.create({"trainer": {"default_local_dir": str(tmp_path / name)}})
            reasons = ("a critic",) if name in own else ()
            runs.append(CheckedRun(Run(name, (f"x={name}", *overrides)), config, 0.5, reasons))
        return ScriptedSweep(script, runs, tmp_path / "results.jsonl")

    return make


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_the_processes_of_a_run_start_while_the_one_before_trains(
    sweep: Callable[..., ScriptedSweep], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script()
    records = sweep(script).run()
    assert script.events == [
        *("start", "lend b", "prepare b", "train a", "release a"),
        *("lend c", "prepare c", "train b", "release b", "train c", "release c"),
    ]
    assert read(tmp_path / "results.jsonl") == records
    assert [record["name"] for record in records] == ["a", "b", "c"]
    assert records[1]["overrides"] == ["x=b"] and records[1]["folder"] == str(tmp_path / "b")
    assert records[1]["metrics"] == {"comprl/free/success": 0.5, "actor/lr": 0.1, "comprl/bank/size": 3.0}
    assert {record["status"] for record in records} == {"finished"}
    assert (tmp_path / "a" / FILE).exists()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and lines[0].startswith("3 runs on the same engines")
    assert re.match(r"run 2/3 b: finished after \d+ s · success 50 %", lines[2])


@pytest.mark.parametrize(
    ("own", "events"),
    [
        # Before a run with engines of its own those of the others end; its own end with it. Nothing is prepared for it,
        # nor while it runs.
        ("b", "start, train a, release a, close, start, train b, release b, close, start, train c, release c"),
        ("a", "start, train a, release a, close, start, lend c, prepare c, train b, release b, train c, release c"),
        ("abc", ", ".join(f"start, train {name}, release {name}, close" for name in "abc")),
    ],
)
def test_a_run_with_engines_of_its_own_does_not_run_beside_others(
    sweep: Callable[..., ScriptedSweep],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    own: str,
    events: str,
) -> None:
    script = Script()
    records = sweep(script, own=own).run()
    assert [record["status"] for record in records] == ["finished"] * 3
    assert ", ".join(script.events) == events
    assert capsys.readouterr().out.startswith(f"3 runs, {len(own)} of them with engines of their own; results: ")
    logs = {name: (tmp_path / name / "train.log").read_text() for name in "abc"}
    assert {name for name, text in logs.items() if "engines of its own: a critic" in text} == {*own}


def test_engines_of_a_failed_runs_own_are_stopped_once(sweep: Callable[..., ScriptedSweep]) -> None:
    script = Script()
    script.failing = {"b": RuntimeError("the server died")}
    sweep(script, own="b").run()
    assert script.events[-7:] == ["start", "train b", "release b", "close", "start", "train c", "release c"]


@pytest.mark.parametrize("kind", [RunHung, ProcessLost])
def test_nothing_is_asked_of_the_queue_after_a_run_that_hung(sweep: Callable[..., ScriptedSweep], kind: Any) -> None:
    script = Script()
    script.failing = {"b": kind("training > rollouts hangs\n  TransferQueue: does not answer")}
    records = sweep(script).run()
    assert [record["status"] for record in records] == ["finished", "failed", "finished"]
    assert records[1]["error"] == f"{kind.__name__}: training > rollouts hangs"
    assert script.events[-5:] == ["train b", "close", "start", "train c", "release c"]


def test_engines_of_an_interrupted_runs_own_are_stopped(sweep: Callable[..., ScriptedSweep]) -> None:
    script = Script()
    script.failing = {"a": RunInterrupted("stopped after step 3")}
    assert [record["status"] for record in sweep(script, own="a").run()] == ["interrupted"]
    assert script.events == ["start", "train a", "release a", "close"]


def test_a_failed_run_costs_its_engines_and_nothing_else(
    sweep: Callable[..., ScriptedSweep], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script()
    script.failing = {"b": RuntimeError("the server died\nwith details")}
    records = sweep(script).run()
    assert [record["status"] for record in records] == ["finished", "failed", "finished"]
    assert records[1]["error"] == "RuntimeError: the server died"
    assert script.events[-5:] == ["release b", "close", "start", "train c", "release c"]
    assert "with details" in (tmp_path / "b" / "train.log").read_text()
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("run 2/3"))
    assert "b: failed" in line and "the server died" in line and str(tmp_path / "b" / "train.log") in line

    again = Script()  # only the failed one is repeated
    assert [record["status"] for record in sweep(again).run()] == ["finished"] * 3
    assert again.events == ["start", "train b", "release b"]
    assert [record["name"] for record in read(tmp_path / "results.jsonl")] == ["a", "b", "c"]


def test_a_record_that_cannot_be_written_costs_no_other_run(
    sweep: Callable[..., ScriptedSweep], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a" / f"{FINISHED}.tmp").mkdir(parents=True)  # as a full disk would, it keeps the file from being made
    assert [record["status"] for record in sweep(Script()).run()] == ["finished"] * 3
    assert f"the record of this run could not be written to {tmp_path / 'a'}" in capsys.readouterr().out


def test_nothing_that_a_run_leaves_has_secrets(
    sweep: Callable[..., ScriptedSweep], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "a-very-secret-value")
    (script := Script()).failing = {"a": RuntimeError("refused: a-very-secret-value")}
    sweep(script).run()
    files = [tmp_path / name for name in ("a/train.log", f"a/{UNFINISHED}", "results.jsonl")]
    texts = [*(file.read_text() for file in files), capsys.readouterr().out]
    assert all("refused: ***" in text and "a-very-secret-value" not in text for text in texts)


@pytest.mark.parametrize("error", [RunInterrupted("stopped after step 3"), KeyboardInterrupt(), SystemExit(15)])
def test_an_interruption_ends_the_sweep(
    sweep: Callable[..., ScriptedSweep], tmp_path: Path, error: BaseException
) -> None:
    script = Script()
    script.failing = {"b": error}
    records = sweep(script).run()
    assert [record["status"] for record in records] == ["finished", "interrupted"]
    assert (tmp_path / "a" / FINISHED).exists() and not (tmp_path / "b" / FINISHED).exists()


@pytest.mark.parametrize(("error", "status"), [(None, "finished"), (OSError(28, "No space left"), "failed")])
def test_a_stop_ends_the_sweep_however_its_run_ends(
    sweep: Callable[..., ScriptedSweep], tmp_path: Path, error: BaseException | None, status: str
) -> None:
    """It may have come too late for the run, or its checkpoint could not be written."""
    script = Script()
    script.stopped, script.failing = "b", {"b": error} if error else {}
    with pytest.raises(KeyboardInterrupt):  # of which the command makes its exit code
        sweep(script).run()
    assert [record["status"] for record in read(tmp_path / "results.jsonl")] == ["finished", status]
    assert "train c" not in script.events and (tmp_path / "b" / FINISHED).exists() == (status == "finished")


def test_a_run_that_cannot_be_prepared_fails_in_its_own_turn(
    sweep: Callable[..., ScriptedSweep], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script()
    made = sweep(script)
    make = made.make_training

    def fail(run: CheckedRun) -> Any:
        if run.run.name == "b":
            raise ValueError("no such trainer")
        return make(run)

    monkeypatch.setattr(made, "make_training", fail)
    records = made.run()
    assert [record["status"] for record in records] == ["finished", "failed", "finished"]
    assert records[1]["error"] == "ValueError: no such trainer"


def test_a_longer_run_stands_for_a_shorter_one(
    sweep: Callable[..., ScriptedSweep], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = "trainer.total_training_steps"
    script = Script()
    script.failing = {"c": RunInterrupted("stopped after step 90")}
    long = sweep(script, f"{steps}=120", "trainer.test_freq=30").run()
    assert [record["status"] for record in long] == ["finished", "finished", "interrupted"]
    capsys.readouterr()

    again = Script()
    made = sweep(again, "trainer.test_freq=20", f"{steps}=60")
    assert made.run() == [*long[:2], *read(tmp_path / "results.jsonl")[2:]]
    assert again.events == ["start", "train c", "release c"]
    assert read(tmp_path / "results.jsonl")[0]["overrides"] == ["x=a", f"{steps}=120", "trainer.test_freq=30"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "run 1/3 a: finished before · with 120 steps"
    sweep(Script(), "trainer.test_freq=20", f"{steps}=60").run()
    assert capsys.readouterr().out.splitlines()[3] == "run 3/3 c: finished before"


def test_a_run_that_counts_but_was_made_with_other_settings_is_said_to_be(
    sweep: Callable[..., ScriptedSweep], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep(Script()).run()
    (tmp_path / "b" / FILE).write_text("trainer: {default_local_dir: elsewhere}")
    capsys.readouterr()
    sweep(Script()).run()
    _, first, note, second, _ = capsys.readouterr().out.splitlines()
    changed = f"trainer.default_local_dir=elsewhere (now {tmp_path / 'b'})"
    assert note == f"b: what its folder has was made with {changed}"
    assert [first, second] == ["run 1/3 a: finished before", "run 2/3 b: finished before"]


@pytest.fixture
def ten_seconds_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every part of a run take ten seconds."""
    clock = itertools.count(0, 10)
    monkeypatch.setattr("verl_comprl.sweep.sweep.time", SimpleNamespace(perf_counter=lambda: next(clock)))


def save(folder: Path, step: int) -> None:
    """Leave what a checkpoint of run ``a`` has at least."""
    weights = folder / "a" / f"global_step_{step}" / "actor" / "model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.touch()
    (folder / "a" / "latest_checkpointed_iteration.txt").write_text(str(step))


@pytest.mark.usefixtures("ten_seconds_each")
def test_seconds_are_those_of_all_parts(sweep: Callable[..., ScriptedSweep], tmp_path: Path) -> None:
    def train(steps: int, error: BaseException | None = None) -> tuple[str, float]:
        script = Script()
        script.failing = {"a": error} if error else {}
        record = sweep(script, f"trainer.total_training_steps={steps}").run()[0]
        return record["status"], record["seconds"]

    stop = RunInterrupted("stopped")
    assert train(60, stop) == ("interrupted", 10)
    assert train(60, stop) == ("interrupted", 10)  # there is no checkpoint: it has begun again
    save(tmp_path, 20)
    assert train(60, stop) == ("interrupted", 20)
    assert train(60, RuntimeError("the server died")) == ("failed", 30)
    save(tmp_path, 60)
    assert train(60) == train(60) == ("finished", 40)
    assert not (tmp_path / "a" / UNFINISHED).exists()
    assert train(120, stop) == ("interrupted", 50)
    save(tmp_path, 90)
    assert train(60) == ("finished", 40)  # that of then
    assert train(120) == ("finished", 60)


@pytest.mark.usefixtures("ten_seconds_each")
def test_seconds_of_a_part_that_was_lost_do_not_count_later(
    sweep: Callable[..., ScriptedSweep], tmp_path: Path
) -> None:
    script = Script()
    script.failing = {"a": RunInterrupted("stopped")}
    sweep(script).run()
    killed = sweep(Script())
    killed.train(killed._runs[0])  # begins again, and is killed after a checkpoint:
    (tmp_path / "a" / FINISHED).unlink()
    save(tmp_path, 5)
    assert sweep(Script()).run()[0]["seconds"] == 10


def run_on_a_cluster(folder: Path) -> CheckedRun:
    places = {
        "trainer": {"default_local_dir": str(folder / "a"), "nnodes": 2},
        "transfer_queue": {"units": "${trainer.nnodes}"},
    }
    config = OmegaConf.create({**places, "ray_kwargs": {"ray_init": {"address": "10.0.0.1:6379"}}})
    return CheckedRun(Run("a", ()), config, None, ())


@pytest.mark.parametrize(
    ("wait", "line"),
    [
        ("verl_comprl.sweep.sweep.start_ray", "connecting to Ray at 10.0.0.1:6379: 1 s so far"),
        ("transfer_queue.init", "starting TransferQueue: 1 s so far"),
    ],
)
def test_a_start_that_takes_long_is_said(wait: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    told = threading.Event()
    got: list[Any] = []

    def note(text: str) -> None:
        said.append(text)
        told.set()

    monkeypatch.setattr("verl_comprl.display.long_waits.FIRST_SECONDS", 1.0)
    for start in ("verl_comprl.sweep.sweep.start_ray", "transfer_queue.init"):
        monkeypatch.setattr(start, lambda given, waits=start == wait: got.append(given) or (waits and told.wait(30)))
    monkeypatch.setattr("verl_comprl.sweep.sweep.check_transfer_queue", lambda: None)
    monkeypatch.setattr("verl_comprl.config.slots.needed_slots", lambda config: 1)
    monkeypatch.setattr("verl_comprl.config.validation.check_cluster_slots", lambda config, resources: None)
    monkeypatch.setattr("ray.cluster_resources", dict)
    run = run_on_a_cluster(tmp_path)
    sweep = Sweep([run], tmp_path / "results.jsonl")
    monkeypatch.setattr(sweep._display, "note", note)
    sweep._start_ray(run)
    assert said and said[0] == line
    assert got[1].units == 2  # a part of another tree there, in which the reference leads nowhere


def test_a_cluster_that_another_run_uses_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep ends with the reason, and TransferQueue, which another run has made, goes on."""

    def check() -> None:
        raise ConfigError("another run uses this Ray cluster")

    ended: list[str] = []
    monkeypatch.setattr("verl_comprl.sweep.sweep.start_ray", lambda config: None)
    monkeypatch.setattr("verl_comprl.sweep.sweep.check_transfer_queue", check)
    monkeypatch.setattr("verl_comprl.config.slots.needed_slots", lambda config: 1)
    monkeypatch.setattr("transfer_queue.init", lambda settings: pytest.fail("another run's queue was joined"))
    monkeypatch.setattr("transfer_queue.close", lambda: pytest.fail("another run's queue was ended"))
    monkeypatch.setattr("verl_comprl.platform.ray_session.end_ray", lambda: ended.append("ray"))
    sweep = Sweep([run_on_a_cluster(tmp_path)], tmp_path / "results.jsonl")
    with pytest.raises(ConfigError, match="another run uses"):
        sweep.run()
    sweep.close()
    assert ended == ["ray"]
