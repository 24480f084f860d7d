"""A watched trainer names a phase that hangs; the other processes are in test_stopped_server.py."""

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from verl_comprl.errors import WaitTimeout
from verl_comprl.platform.frames import frame_of
from verl_comprl.platform.under_way import UnderWay, doing
from verl_comprl.platform.waiting import begin
from verl_comprl.trainer.checkpoint import contents
from verl_comprl.trainer.no_experience_runtime import NoExperienceRuntime
from verl_comprl.trainer.step import keys
from verl_comprl.trainer.watchdog import situation, watching
from verl_comprl.trainer.watchdog.liveness import VitalActors
from verl_comprl.trainer.watchdog.situation import describe_prompts, describe_queues, describe_work
from verl_comprl.trainer.watchdog.watching import PHASES, WAITS
from verl_comprl.trainer.watchdog.watching import watching as watched


class Trainer:
    """Takes rollouts in its training, and checkpoints; each waits until it may go on."""

    def __init__(self, after: float) -> None:
        self.comprl = SimpleNamespace(watchdog=SimpleNamespace(after=after, factor=3, end_after=0))
        self.experience_runtime = NoExperienceRuntime()
        self.vital = VitalActors()
        self.gate = threading.Event()
        self.replay_buffer = SimpleNamespace(sample=self.gate.wait)

    def fit(self) -> str:
        self.replay_buffer.sample()
        return "trained"

    def _save_checkpoint(self, folder: str, *, keep: int) -> str:
        with doing("waiting for a lock"):
            self.gate.wait()
        return f"{folder} {keep}"

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name not in PHASES:
            raise AttributeError(name)
        return lambda: None


def said_while(trainer: Trainer, work: Callable[[], Any], *, ends_with: str) -> tuple[list[str], Any]:
    """Do work, let it go on once something was said, and wait until something is said that ends in a certain way."""
    said: list[str] = []
    last = threading.Event()

    def announce(text: str) -> None:
        said.append(text)
        trainer.gate.set()
        if ends_with in text:
            last.set()

    with watched(trainer, announce):
        result = work()
        assert last.wait(30), said
    return said, result


def test_a_phase_that_hangs_is_named_with_the_line_that_waits_and_so_is_its_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trainer = Trainer(after=0.2)
    said, result = said_while(trainer, lambda: trainer.fit(), ends_with="resumed")
    assert result == "trained"
    first, *later = said
    head, *lines = first.splitlines()
    assert head.startswith("watchdog: training > rollouts: ") and "so far, which is more than 0 s" in head
    assert lines == [lines[0]] and lines[0].startswith("  this process: threading.py:")  # no file is verl's or ours
    assert later[0] == "  0 of 0 processes answer"
    assert later[-1].startswith("watchdog: training > rollouts: resumed after ")
    log = capsys.readouterr().out
    assert f"{first}\n{later[0]}\n" in log
    assert "the watchdog found it here" in log and "in fit\n    self.replay_buffer.sample()" in log


def test_a_wait_within_a_phase_is_named_and_arguments_and_result_pass_through() -> None:
    trainer = Trainer(after=0.2)
    said, result = said_while(trainer, lambda: trainer._save_checkpoint("x", keep=2), ends_with="resumed")
    assert result == "x 2"
    assert said[0].startswith("watchdog: checkpoint > waiting for a lock: ")


def test_it_says_nothing_when_it_is_off_or_nothing_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    off = Trainer(after=0)
    before = off.replay_buffer.sample
    with watched(off, pytest.fail):
        assert off.replay_buffer.sample == before
    monkeypatch.setattr(watching, "LONGEST_PERIOD", 0.001)
    looked = threading.Event()
    monkeypatch.setattr(watching, "under_way", lambda: looked.set() or [])
    with watched(Trainer(after=60), pytest.fail):
        assert looked.wait(30)


def test_a_watchdog_that_fails_says_so_once_and_does_no_harm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Any) -> list[UnderWay]:
        raise KeyError("lost")

    monkeypatch.setattr(watching, "manager_work", fail)
    watch = watching.Watch(Trainer(after=1), watching.Watchdog(1, 1), pytest.fail)
    watch.look()
    watch.look()
    assert capsys.readouterr().out.count("KeyError: 'lost'") == 1


def test_work_of_a_manager_that_hangs_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is silent for some looks; what it says after them tells."""
    what, said = f"{situation.MANAGER} > distillation", list[str]()
    answers: list[Any] = [[UnderWay("distillation", age, 1)] for age in (10.0, 70.0)]
    answers += [situation.SILENT, "failed: ActorUnavailableError", [UnderWay("distillation", 130.0, 1)], []]
    process = SimpleNamespace(**{"__ray_call__": SimpleNamespace(remote=lambda function: None)})
    monkeypatch.setattr(situation, "experience_manager", lambda _: {situation.MANAGER: process})
    monkeypatch.setattr(situation, "ask", lambda asked: dict.fromkeys(asked, answers.pop(0)))
    monkeypatch.setattr(watching, "situation", lambda _: iter(()))
    watch = watching.Watch(Trainer(after=1), watching.Watchdog(60, 3), said.append)
    while answers:
        watch.look()
    heads = [text for text in said if text]
    limit = "so far, which is more than 60 s"
    assert heads == [f"watchdog: {what}: {age}" for age in (f"70 s {limit}", "resumed after 2 min 10 s")]


def test_a_hang_is_named_though_the_other_processes_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> Iterator[str]:
        raise WaitTimeout("something", 5)
        yield ""

    monkeypatch.setattr(watching, "situation", fail)
    said: list[str] = []
    with doing("rollouts"):
        watching.Watch(Trainer(after=1), watching.Watchdog(0, 0), said.append).look()
    assert said[0].startswith("watchdog: rollouts: ")


def test_a_queue_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr(keys, "tq", SimpleNamespace(kv_list=gate.wait))
    monkeypatch.setattr(situation, "ANSWER_SECONDS", 0.01)
    process = SimpleNamespace(**{"__ray_call__": SimpleNamespace(remote=lambda function: None)})
    monkeypatch.setattr(situation, "agent_loop_workers", lambda _: {"worker": process})
    monkeypatch.setattr(situation, "actor_servers", lambda _: {})
    monkeypatch.setattr(situation, "extractor_servers", lambda _: {})
    monkeypatch.setattr(situation, "ask", lambda asked: {name: [] for name in asked})
    lines = list(situation.situation(Trainer(after=1)))
    gate.set()
    assert lines[0] == "TransferQueue: does not answer" and lines[-1] == "1 of 1 processes answer"


@pytest.mark.parametrize(
    ("owner", "names"), [(PPOTrainer, PHASES), (ReplayBuffer, WAITS[:1]), (ReplayBufferAsync, WAITS)]
)
def test_the_methods_that_are_marked_exist_in_verl(owner: type, names: tuple[str, ...]) -> None:
    assert [name for name in names if not callable(getattr(owner, name, None))] == []


def test_the_line_is_the_innermost_one_of_ours_that_does_not_only_wait() -> None:
    def look() -> str:
        frame = frame_of(threading.main_thread().ident or 0)
        assert frame is not None
        return watching.place(frame)

    def acquire(timeout: float) -> bool:
        places.append(begin(look, "look").result())
        return True

    places: list[str] = []
    broken: Any = SimpleNamespace(lock=SimpleNamespace(acquire=acquire, release=lambda: None))
    with pytest.raises(AttributeError):  # it has a lock, and nothing to save
        contents.save(Path("/nowhere"), 1, broken, lambda folder: None, 1)
    assert [re.sub(r":\d+ ", ": ", place) for place in places] == [
        "verl_comprl/trainer/checkpoint/contents.py: in save"
    ]


def test_a_process_that_is_silent_or_dead_is_told_from_one_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(reference: str) -> str:
        if reference == "dead":
            raise ActorDiedError
        return f"answer of {reference}"

    def wait(references: list[str], *, num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        assert num_returns == len(references) == 3 and timeout == situation.ANSWER_SECONDS
        return [reference for reference in references if reference != "silent"], ["silent"]

    monkeypatch.setattr(situation, "ray", SimpleNamespace(wait=wait, get=get))
    assert situation.ask({"a": "there", "b": "silent", "c": "dead"}) == {
        "a": "answer of there",
        "b": "does not answer",
        "c": "failed: ActorDiedError",
    }
    assert situation.ask({}) == {}


def test_prompts_work_and_queues_are_counted() -> None:
    def prompt(status: str) -> dict[str, Any]:
        return {"is_prompt": True, "status": status, "global_steps": 1}

    tags = {"train": {"a": prompt("running"), "b": prompt("running"), "c": prompt("finished"), "c_0_0": {}}, "val": {}}
    assert describe_prompts(tags) == "training: 2 running, 1 finished"
    assert describe_prompts({"val": {"a": prompt("pending")}}) == "evaluation: 1 pending"
    assert describe_prompts({}) == "none"
    work = [
        UnderWay("environment > between turns > generate", 5.0, 1),
        UnderWay("environment > between turns > environment", 44.0, 1),
        UnderWay("environment > between turns > generate", 130.0, 1),
    ]
    assert describe_work(work) == "2 in generate (oldest 2 min 10 s), 1 in environment (oldest 44 s)"
    assert describe_work([]) == "nothing runs"
    metrics = {"queue/depth": 1.0, "buffer/samples": 16.0, "extractor/away": 0.0}
    assert describe_queues(metrics) == "1 episode in the queue, 16 samples in the buffer"
    assert describe_queues(metrics | {"extractor/away": 1.0}).endswith(", the extractor is away")
