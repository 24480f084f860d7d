"""A manager that does not answer in time costs the metrics of a step, not the run."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from ray.exceptions import ActorDiedError
from running import undocumented

from verl_comprl.errors import WaitTimeout
from verl_comprl.experience import EmbedderUnavailable, StoreUnavailable
from verl_comprl.manager.messages import ManagerNotOpen
from verl_comprl.manager.opening import Opening
from verl_comprl.trainer import experience_runtime, manager_guard
from verl_comprl.trainer.experience_runtime import ExperienceRuntime
from verl_comprl.trainer.extractor.learner import ExtractorLearner
from verl_comprl.trainer.late_reports import LateReports
from verl_comprl.trainer.manager_guard import ManagerGuard, ManagerLost


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def late() -> set[str]:
    """Calls of the manager that do not answer."""
    return set()


@pytest.fixture
def runtime(asked: list[str], late: set[str], monkeypatch: pytest.MonkeyPatch) -> ExperienceRuntime:
    answers = {"collect": {"bank/size": 3.0}, "metrics": {"bank/size": 4.0}, "take_warnings": []}

    def wait_for(call: str, seconds: float, what: str) -> Any:
        asked.append(call)
        if call in late:
            raise WaitTimeout(what, seconds)
        return answers.get(call)

    for module in (experience_runtime, manager_guard):
        monkeypatch.setattr(module, "wait_for", wait_for)
    runtime: Any = object.__new__(ExperienceRuntime)
    runtime._comprl = SimpleNamespace(merge=SimpleNamespace(every=1), drain_timeout=5.0, work_timeout=60.0)
    learned = {"comprl/extractor/updates": 2.0}
    runtime._learner = SimpleNamespace(metrics=lambda: learned, stop=lambda seconds: True, note_samples=lambda: None)
    names = ("collect", "metrics", "take_warnings", "merge", "drain", "close")
    runtime.manager = SimpleNamespace(**{name: SimpleNamespace(remote=lambda *_, n=name: n) for name in names})
    runtime._guard, runtime._late_reports = ManagerGuard(runtime.manager, lambda: None), LateReports()
    runtime._collect_timeouts, runtime._extractor_saves_failed, runtime._is_open = 0, 0, True
    runtime._told = 0
    runtime.extractor = SimpleNamespace(is_down=False)
    return runtime


def test_a_step_whose_collection_times_out_is_counted_and_the_next_one_is_complete(
    runtime: ExperienceRuntime, asked: list[str], late: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    late.add("collect")
    counts = {"comprl/collect_timeouts": 1.0, "comprl/manager_restarts": 0.0}
    counts |= {"comprl/unreported_waiting": 0.0, "comprl/unreported_dropped": 0.0}
    learned = {"comprl/extractor/updates": 2.0, "comprl/extractor/saves_failed": 0.0}
    assert runtime.collect(1) == counts | learned
    assert asked == ["collect"], "a manager that hangs is asked nothing more in this step"
    assert "waited 30 s for the experience manager to close the step" in capsys.readouterr().out
    late.clear()
    told: Any = runtime._learner
    told.note_samples = lambda: asked.append("learner")
    metrics = runtime.collect(2)
    assert metrics["comprl/bank/size"] == 3.0 and metrics["comprl/collect_timeouts"] == 1.0
    assert asked[1:] == ["collect", "learner", "merge", "take_warnings"]
    assert undocumented(metrics) == []


@pytest.mark.parametrize(
    ("name", "calls", "said"),
    [
        ("merge", ["collect", "merge"], "waited 30 s for the experience manager to start a merge"),
        ("take_warnings", ["collect", "merge", "take_warnings"], "waited 30 s for the experience manager's warnings"),
    ],
)
def test_a_manager_that_is_late_after_it_has_closed_the_step_costs_no_metrics(
    runtime: ExperienceRuntime,
    asked: list[str],
    late: set[str],
    capsys: pytest.CaptureFixture[str],
    name: str,
    calls: list[str],
    said: str,
) -> None:
    late.add(name)
    metrics = runtime.collect(1)
    assert metrics["comprl/bank/size"] == 3.0 and metrics["comprl/collect_timeouts"] == 0.0
    assert asked == calls and f"{said}; the run continues without it" in capsys.readouterr().out


class Late(LateReports):
    """Late reports that are settled as soon as the manager has answered something, noted in ``asked``."""

    def __init__(self, asked: list[str], *, waiting: int) -> None:
        super().__init__()
        self._asked_for = asked
        self._counts[0] = (waiting, 0)

    def settle(self, seconds: float) -> bool:
        if {"collect", "metrics", "drain"} & set(self._asked_for):
            self._counts[0] = (0, 0)
        self._asked_for.append("settle")
        return not self.waiting


@pytest.mark.parametrize(
    ("waiting", "closing", "saving"),
    [
        (0, ["settle", "collect"], ["settle", "save"]),
        (3, ["settle", "collect", "settle"], ["settle", "metrics", "settle", "save"]),
    ],
)
def test_reports_that_wait_come_before_the_end_of_the_step_and_the_checkpoint(
    runtime: Any, asked: list[str], waiting: int, closing: list[str], saving: list[str]
) -> None:
    """Also those that only a manager that is there again can take: a resumed run would know nothing of them."""
    runtime.manager.save = SimpleNamespace(remote=lambda _: "save")
    runtime._late_reports = Late(asked, waiting=waiting)
    runtime.collect(1)
    assert asked == [*closing, "merge", "take_warnings"]
    asked.clear()
    runtime._late_reports = Late(asked, waiting=waiting)
    runtime._save_manager("folder")
    assert asked == saving


@pytest.mark.parametrize(
    ("waiting", "stopped", "finishing"),
    [
        (0, False, ["drain"]),
        (3, True, ["drain"]),
        (3, False, ["drain", "settle", "drain"]),
    ],
)
def test_what_a_manager_that_hung_until_the_end_of_the_run_gets_then_is_distilled(
    runtime: Any, asked: list[str], waiting: int, stopped: bool, finishing: list[str]
) -> None:
    runtime._late_reports = Late(asked, waiting=waiting)
    runtime.finish(lambda: stopped)
    assert asked == [*finishing, "take_warnings", "metrics"]


def test_a_checkpoint_tells_which_episodes_it_may_lack(
    runtime: Any, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(*given: Any, **_: Any) -> bool:
        given[3]("folder")  # lets the manager save
        return True

    monkeypatch.setattr(experience_runtime.contents, "save", save)
    runtime.manager.save = SimpleNamespace(remote=lambda _: "save")
    runtime._learner.given_up, runtime._checkpoints = False, []
    late = runtime._late_reports = Late(asked, waiting=3)
    assert runtime.save(Path("folder"), 1) == ""
    asked.clear()
    late._counts[0] = (3, 0)
    monkeypatch.setattr(late, "settle", lambda seconds: False)
    assert runtime.save(Path("folder"), 2) == "3 episodes are not confirmed by the manager"
    late._counts[0], late._died = (0, 0), 1
    assert runtime.save(Path("folder"), 3) == late.lost != ""


@pytest.mark.parametrize(("backend", "pausing"), [("actor", ("manager",)), ("engine", ())])
def test_the_manager_pauses_with_the_actors_servers_if_they_answer(
    backend: str, pausing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    watchdog = SimpleNamespace(end_after=0.0)
    extractor = SimpleNamespace(backend=backend)
    settings = SimpleNamespace(has_extractor_engine=True, extractor=extractor, watchdog=watchdog)
    monkeypatch.setattr(experience_runtime, "comprl_config", lambda _: settings)
    monkeypatch.setattr(experience_runtime, "start_manager", lambda _: ("manager", None))
    assert ExperienceRuntime(OmegaConf.create()).pausing == pausing


def test_an_evaluation_does_without_a_checksum_that_does_not_come(runtime: Any, late: set[str]) -> None:
    runtime.manager.bank_checksum = SimpleNamespace(remote=lambda: "bank_checksum")
    late.add("bank_checksum")
    assert runtime.bank_checksum() is None and runtime._collect_timeouts == 1


@pytest.mark.parametrize("error", [WaitTimeout("to note", 30.0), ActorDiedError(), ManagerNotOpen("not open")])
@pytest.mark.parametrize("there", [True, False])
def test_telling_a_manager_that_does_not_answer_does_not_fail(
    runtime: Any, monkeypatch: pytest.MonkeyPatch, there: bool, error: Exception
) -> None:
    """It would abort the update of which the manager is told."""
    asked: list[str] = []

    def wait_for(call: str, *_: Any) -> None:
        asked.append(call)
        raise error

    monkeypatch.setattr(experience_runtime, "wait_for", wait_for)
    name = "back" if there else "away"
    setattr(runtime.manager, name, SimpleNamespace(remote=lambda number: name))
    runtime._tell_manager(there)
    assert asked == [name]


@pytest.mark.parametrize("error", [WaitTimeout("the experience manager to start again", 60.0), RuntimeError("torn")])
def test_a_manager_that_is_lost_ends_the_run_with_its_error(runtime: Any, error: Exception) -> None:
    runtime._guard._error = error
    with pytest.raises(ManagerLost) as raised:
        runtime.collect(1)
    assert raised.value.__cause__ is error
    runtime.stop(1.0)  # in fit's finally: another error there would hide this one


@pytest.mark.parametrize("error", [StoreUnavailable("no route"), EmbedderUnavailable("no route")])
def test_steps_go_on_while_a_manager_cannot_begin_again_as_its_bank_is_away(
    runtime: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(runtime._guard, "ask", fail)
    runtime.manager.bank_checksum = SimpleNamespace(remote=None)
    assert runtime.collect(1)["comprl/collect_timeouts"] == 1.0
    assert runtime.bank_checksum() is None
    assert runtime.finish(lambda: False) == {"comprl/extractor/updates": 2.0, "comprl/extractor/saves_failed": 0.0}
    assert runtime._collect_timeouts == 3


@pytest.mark.parametrize("name", ["drain", "take_warnings", "metrics"])
def test_the_end_of_a_run_survives_it(runtime: ExperienceRuntime, late: set[str], name: str) -> None:
    late.add(name)
    assert runtime.finish(lambda: False) == {"comprl/extractor/updates": 2.0, "comprl/extractor/saves_failed": 0.0}
    runtime.stop(1.0)


def draining(
    runtime: ExperienceRuntime, monkeypatch: pytest.MonkeyPatch, *, dies: bool = False
) -> tuple[list[float], list[float]]:
    """Let the queue never become empty; returns how long the manager waited each time, and the clock that moves."""
    waited, clock = [], [0.0]

    def drain(seconds: float) -> str:
        waited.append(seconds)
        clock[0] += 0.0 if dies else seconds
        return "drain"

    manager: Any = runtime.manager
    manager.drain = SimpleNamespace(remote=drain)
    monkeypatch.setattr(experience_runtime, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    return waited, clock


def test_the_end_of_a_run_waits_for_the_queue_unless_the_servers_are_down(
    runtime: ExperienceRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited, clock = draining(runtime, monkeypatch)
    for down in (False, True):
        runtime.extractor.is_down = down  # pyright: ignore[reportAttributeAccessIssue]
        runtime.finish(lambda: False)
    assert sum(waited) == 5.0 == clock[0] and waited[-1] == 0.0


def test_a_stop_ends_waiting_for_the_queue(runtime: ExperienceRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    waited, clock = draining(runtime, monkeypatch)
    runtime._comprl.drain_timeout = 3600.0
    runtime.finish(lambda: clock[0] > 5)
    assert 5 < sum(waited) < 10


def test_nobody_waits_for_the_queue_when_the_extractor_dies(
    runtime: ExperienceRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manager then answers at once, though its queue is not empty."""
    waited, _ = draining(runtime, monkeypatch, dies=True)
    runtime.finish(lambda: False)
    assert len(waited) == 1


def test_a_run_that_is_left_at_once_waits_no_longer_than_that_and_lets_nothing_begin_again(
    runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def wait_for(call: str, seconds: float, what: str) -> Any:
        waited.append(seconds)
        raise ActorDiedError

    for module in (experience_runtime, manager_guard):
        monkeypatch.setattr(module, "wait_for", wait_for)
    runtime._guard._restart = lambda: pytest.fail("it would load the bank")
    with hanging(runtime):
        started = time.monotonic()
        runtime.stop(0.3)
        assert 0.3 <= time.monotonic() - started < 15 and waited == [0.3]


@contextmanager
def hanging(runtime: Any) -> Iterator[threading.Event]:
    """Let the threads of learner and guard continue until the event, or to the end of the block, whoever stops them."""
    end = threading.Event()
    learner: Any = object.__new__(ExtractorLearner)
    learner._stopped, learner._has_samples, runtime._learner = threading.Event(), threading.Event(), learner
    for owner in (learner, runtime._guard):
        owner._thread = threading.Thread(target=end.wait, args=(40,), daemon=True)
        owner._thread.start()
    try:
        yield end
    finally:
        end.set()
    assert learner._stopped.is_set() and runtime._guard._stopped.is_set()


@pytest.mark.parametrize("moment", [0.0, 1.5])
def test_a_stop_that_comes_at_the_end_too_leaves_a_running_update_behind_soon(
    runtime: Any, moment: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is saved any more; learner and guard have that time together."""
    monkeypatch.setattr(experience_runtime, "STOP_SECONDS", 0.5)
    with hanging(runtime):
        started = time.monotonic()
        runtime.stop(3600.0, lambda: time.monotonic() - started > moment)
        assert max(moment, 0.5) <= time.monotonic() - started < 30


def test_the_end_of_a_run_that_was_not_stopped_waits_for_the_update(
    runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experience_runtime, "STOP_SECONDS", 0.0)
    with hanging(runtime) as end:
        threading.Timer(1.5, end.set).start()
        runtime.stop(3600.0, lambda: False)
        assert end.is_set() and not runtime._learner._thread.is_alive()


@pytest.mark.parametrize("error", [WaitTimeout("the bank", 300.0), ActorDiedError(), ManagerNotOpen("not open")])
def test_a_manager_that_does_not_close_is_ended(
    runtime: ExperienceRuntime, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_for(*_: Any) -> None:
        raise error

    killed: list[Any] = []
    monkeypatch.setattr(experience_runtime.ray, "kill", killed.append)
    monkeypatch.setattr(experience_runtime, "wait_for", wait_for)
    runtime.close(1.0)
    assert killed == [runtime.manager]


def test_a_manager_that_is_killed_in_the_first_step_of_a_resumed_run_begins_again_in_that_step(
    runtime: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    openings: list[Opening] = []
    monkeypatch.setattr(experience_runtime.contents, "load_extractor", lambda *_: None)
    monkeypatch.setattr(experience_runtime, "load_manager", lambda *_: "load")
    monkeypatch.setattr(experience_runtime, "open_bank", lambda manager, config, opening: openings.append(opening))
    runtime._config, runtime._step = OmegaConf.create({"trainer": {"val_only": False}}), 0
    runtime.extractor = SimpleNamespace(
        publish_weights=lambda: None, generate=lambda actor: None, model=None, prompt_length=8
    )
    for order in ("restore", "connect"):
        setattr(runtime.manager, order, SimpleNamespace(remote=lambda *_: "done"))
    saved = tmp_path / "global_step_7"
    (saved / "comprl").mkdir(parents=True)
    (saved / "comprl/manager.json").touch()
    runtime.connect(saved, None)
    runtime.stop(1.0)
    runtime._restart_manager()
    assert openings == [Opening(True, killed_in=7, checkpoint=saved / "comprl")]


def test_a_manager_that_begins_again_takes_the_latest_checkpoint_that_is_there(
    runtime: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And whole: of one that another run has resumed, the run that wrote it may have left the bank only."""
    openings: list[Opening] = []
    monkeypatch.setattr(experience_runtime, "load_manager", lambda *_: "load")
    monkeypatch.setattr(experience_runtime, "open_bank", lambda manager, config, opening: openings.append(opening))
    monkeypatch.setattr(runtime, "_connect_extractor", lambda: None, raising=False)
    runtime._config, runtime._step = OmegaConf.create(), 9
    removed, older, newer, stripped = (tmp_path / f"global_step_{step}" for step in (2, 4, 6, 8))
    for folder in (older, newer, stripped):
        (folder / "comprl/bank").mkdir(parents=True)
        if folder != stripped:
            (folder / "comprl/manager.json").touch()
    every = (removed, older, newer, stripped)
    for saved, found in (((), None), ((removed,), None), ((stripped,), None), (every, newer / "comprl")):
        runtime._checkpoints = []
        for folder in saved:
            runtime.note_checkpoint(folder)
        runtime._restart_manager()
        assert openings.pop() == Opening(True, killed_in=9, checkpoint=found)
