"""The books of made runs: clean ones have no problems, and each kind of damage is found."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from books import problems


def episode(id: str, step: int, *, call: str | None = None, kind: str = "training") -> dict[str, Any]:
    return {
        "id": id,
        "kind": kind,
        "step": step,
        "outcome": {"success": True, "score": 1.0},
        "error": None,
        "guide": {"call": call} if call else None,
        "turns": [{"questions": []}],
        "unfinished": None,
    }


def call(id: str, of: str, step: int) -> dict[str, Any]:
    return {"event": "call", "call": id, "kind": "distill", "episode": of, "step": step}


def use(id: str, by: str) -> dict[str, Any]:
    return {"event": "use", "call": id, "episode": by, "success": True, "reward": 1.0}


class Books:
    """Lines of a run, which is clean as it is made: one episode distilled, one guided by it that waits, one dead."""

    def __init__(self) -> None:
        self.episodes = [episode("first", 1), episode("second", 2, call="c"), episode("third", 2)]
        self.episodes.append(episode("seen", 2, kind="evaluation"))
        self.calls = [call("c", "first", 1), use("c", "second")]
        self.events = [{"event": "written", "entry": "e", "episode": "first", "step": 1}]
        self.metrics: list[dict[str, float]] = [{}, {}]
        self.waiting, self.dead = ["second"], ["third"]

    def write(self, run: Path) -> Path:
        for name, lines in (("episodes", self.episodes), ("extractor_calls", self.calls)):
            (run / name).mkdir(parents=True)
            with gzip.open(run / name / "step_2.jsonl.gz", "wt") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
        metrics = [{"step": step, "data": data} for step, data in enumerate(self.metrics, start=1)]
        (run / "global_step_2/comprl").mkdir(parents=True)
        (run / "queue").mkdir()
        (run / "latest_checkpointed_iteration.txt").write_text("2")
        for path, lines in (
            ("experience.jsonl", self.events),
            ("metrics.jsonl", metrics),
            ("global_step_2/comprl/queue.jsonl", [{"request": {"id": id}} for id in self.waiting]),
            ("queue/dead_letters.jsonl", [{"request": {"id": id}} for id in self.dead]),
        ):
            (run / path).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return run


def test_clean_books_have_no_problems(tmp_path: Path) -> None:
    assert problems(Books().write(tmp_path)) == []


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda books: books.waiting.clear(), "1 finished episodes have vanished, 0 were not confirmed: ['second']"),
        (lambda books: books.dead.clear(), "['third']"),
        (lambda books: (books.calls.pop(0), books.events.clear()), "['first']"),
        (lambda books: books.episodes.append(episode("third", 2)), "episode third is there 2 times"),
        (lambda books: books.calls.append(use("c", "second")), "reward of call c for episode second is there 2 times"),
        (lambda books: books.calls.append(use("c", "third")), "call c was rewarded for episode third, which had not"),
        (lambda books: books.events[0].update(episode="none"), "entry e was written from episode none"),
    ],
)
def test_damage_is_found(tmp_path: Path, damage: Callable[[Books], Any], words: str) -> None:
    books = Books()
    damage(books)
    (problem,) = problems(books.write(tmp_path))
    assert words in problem


def test_what_was_counted_as_lost_is_no_problem(tmp_path: Path) -> None:
    books = Books()
    books.waiting.clear()
    books.metrics[1]["comprl/unreported"] = 1.0
    assert problems(books.write(tmp_path / "unreported")) == []
    books.metrics = [{}, {"comprl/manager_restarts": 1.0}]
    assert problems(books.write(tmp_path / "killed")) == []
