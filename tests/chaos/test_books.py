"""The books of made runs: clean ones have no problems, and each kind of damage is found."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from books import UNWRITTEN, counted_ahead, problems

from verl_comprl.experience import Experience, TaskUsage
from verl_comprl.experience.schema import derive_id
from verl_comprl.experience.transfer.snapshot import write_snapshot

ENTRY = derive_id("entry")
READ = {"query": "?", "answer": "!", "status": "answered", "entry": "other", "call": "a"}


def episode(id: str, step: int, *, call: str | None = None, kind: str = "training") -> dict[str, Any]:
    return {
        "id": id,
        "kind": kind,
        "status": "trained" if kind == "training" else "evaluated",
        "step": step,
        "outcome": {"success": True, "score": 1.0},
        "error": None,
        "reported": True if kind == "training" else None,
        "guided": call is not None,
        "guide": {"call": call, "entry": ENTRY, "verdict": None} if call else None,
        "turns": [{"questions": []}],
        "unfinished": None,
    }


def call(id: str, of: str, step: int) -> dict[str, Any]:
    return {"event": "call", "call": id, "kind": "distill", "episode": of, "step": step}


def use(id: str, by: str, step: int = 2) -> dict[str, Any]:
    return {"event": "use", "call": id, "episode": by, "success": True, "reward": 1.0, "step": step}


def read(by: str, step: int = 2, *, entry: str = ENTRY, asked: bool = False) -> dict[str, Any]:
    of = {"episode": by, "task": "room", "success": True, "step": step}
    return {"event": "read", "entry": entry, "asked": asked, **of}


class Books:
    """Lines of a run, which is clean as it is made.

    One episode was distilled, one guided by its entry waits, one is dead, one taught nothing, and one that the manager
    did not confirm was given up.
    """

    def __init__(self) -> None:
        self.episodes = [episode("first", 1), episode("second", 2, call="c"), episode("third", 2), episode("fourth", 2)]
        self.episodes.append(episode("seen", 2, call="c", kind="evaluation"))
        self.episodes.append(episode("late", 2, call="c") | {"reported": False})
        self.calls = [call("c", "first", 1), use("c", "second")]
        self.events = [{"event": "written", "entry": ENTRY, "call": "c", "episode": "first", "step": 1}]
        self.events += [read("second"), {"event": "nothing", "episode": "fourth", "call": "n", "step": 2}]
        self.metrics = [{"timing_s/step": 3.0, UNWRITTEN: 0.0} for _ in range(4)]
        self.metrics[1] |= {"comprl/unreported": 1.0, "comprl/unreported_dropped": 1.0}
        self.waiting, self.dead = ["second"], ["third"]
        self.unpaid: list[dict[str, str]] = []
        self.reported = {"first": 1, "second": 2, "third": 2, "fourth": 2}
        self.usage = {"uses": 1, "successes": 1}
        self.entries = [ENTRY]
        self.settings: dict[str, Any] = {}

    def late_was_taken(self) -> None:
        """Everything that a manager does with an episode that is reported to it again."""
        del self.metrics[1]["comprl/unreported_dropped"]
        self.events.append(read("late"))
        self.calls.append(use("c", "late"))
        self.usage = {"uses": 2, "successes": 2}
        self.waiting.append("late")

    def manager(self) -> dict[str, Any]:
        return {"step": 4, "reported": self.reported, "credit": {"waiting": self.unpaid}}

    def kill(self, step: int) -> None:
        for data in self.metrics[step - 1 :]:
            data["comprl/manager_restarts"] = 1.0

    def write(self, run: Path) -> Path:
        for name, lines in (("episodes", self.episodes), ("extractor_calls", self.calls)):
            (run / name).mkdir(parents=True)
            with gzip.open(run / name / "step_2.jsonl.gz", "wt") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
        metrics = [{"step": step, "data": data} for step, data in enumerate(self.metrics, start=1)]
        saved = run / "global_step_4/comprl"
        saved.mkdir(parents=True)
        (run / "queue").mkdir()
        (run / "latest_checkpointed_iteration.txt").write_text("4")
        (run / "config.yaml").write_text(yaml.safe_dump({"comprl": {"extractor": self.settings}}))
        (saved / "manager.json").write_text(json.dumps(self.manager()))
        usage = (TaskUsage(task="room", **self.usage),)
        entries = [Experience(id=id, title="t", content="c", created_step=1, usage=usage) for id in self.entries]
        write_snapshot(saved / "bank", entries, np.ones((len(entries), 1), np.float32), {"dimension": 1})
        for path, lines in (
            ("experience.jsonl", self.events),
            ("metrics.jsonl", metrics),
            ("global_step_4/comprl/queue.jsonl", [{"request": {"id": id}} for id in self.waiting]),
            ("queue/dead_letters.jsonl", [{"request": {"id": id}} for id in self.dead]),
        ):
            (run / path).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return run


def test_clean_books_have_no_problems(tmp_path: Path) -> None:
    assert problems(Books().write(tmp_path)) == []


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda books: books.waiting.clear(), "episode second of step 2 has vanished"),
        (lambda books: books.dead.clear(), "episode third of step 2 has vanished"),
        (lambda books: books.events.pop(2), "episode fourth of step 2 has vanished"),
        (lambda books: books.dead.append("third"), "dead letter of episode third is there 2 times"),
        (lambda books: books.calls.append(call("c", "first", 2)), "distillation of episode first is there 2 times"),
        (
            lambda books: books.events.append({"event": "nothing", "episode": "first", "call": "c", "step": 2}),
            "episode first was distilled into entries, and into none",
        ),
        (lambda books: books.dead.append("first"), "episode first was distilled, and is a dead letter"),
        (lambda books: books.dead.append("fourth"), "episode fourth was distilled, and is a dead letter"),
        (
            lambda books: books.metrics[1].pop("comprl/unreported"),
            "0 unreported episodes were counted in step 2, 1 are on record",
        ),
        (
            lambda books: books.metrics[0].update({"comprl/unreported": 2.0}),
            "2 unreported episodes were counted in step 1",
        ),
        (lambda books: books.episodes.append(episode("third", 2)), "episode third is there 2 times"),
        (lambda books: books.calls.append(use("c", "second")), "reward of call c for episode second is there 2 times"),
        (lambda books: books.calls.append(use("c", "third")), "call c was rewarded for episode third, which had not"),
        (lambda books: books.calls.append(use("c", "none")), "call c was rewarded for episode none, which is not on"),
        (lambda books: books.calls.append(use("c", "seen")), "call c was rewarded for episode seen, which is not on"),
        (lambda books: books.calls[1].update(success=False), "another outcome than that of episode second"),
        (lambda books: books.calls.pop(1), "call c was not rewarded for episode second, which had read it"),
        (
            lambda books: books.events.append(
                {"event": "written", "entry": "e", "call": "c", "episode": "x", "step": 2}
            ),
            "entry e was written from episode x, which is not on record",
        ),
        (lambda books: books.events.append(read("seen", entry="gone")), "gone was read by episode seen, which is not"),
        (
            lambda books: books.events.append(read("third", entry="gone")),
            "third has read other entries than its events",
        ),
        (
            lambda books: books.episodes[1]["turns"][0]["questions"].append(READ | {"call": None}),
            "second has read other",
        ),
        (lambda books: books.entries.append(derive_id("x")), "is in the bank, and no event says who wrote it"),
        (lambda books: books.usage.update(uses=2), f"entry {ENTRY} has 2 uses in room, its events 1 to 1"),
        (lambda books: books.usage.update(successes=0), f"entry {ENTRY} has 0 successes in room, its events 1 to 1"),
        (lambda books: books.usage.update(asked=1), f"entry {ENTRY} has 1 asked in room, its events 0 to 0"),
    ],
)
def test_damage_is_found(tmp_path: Path, damage: Callable[[Books], Any], words: str) -> None:
    books = Books()
    damage(books)
    found = problems(books.write(tmp_path))
    assert found and all(words in problem or problem.startswith(f"entry {derive_id('x')} has") for problem in found), (
        found
    )


def test_what_the_manager_took_late_counts_once(tmp_path: Path) -> None:
    books = Books()
    books.late_was_taken()
    assert problems(books.write(tmp_path / "once")) == []
    books.usage.update(uses=3, successes=3)
    (uses, successes) = problems(books.write(tmp_path / "twice"))
    assert "3 uses" in uses and "3 successes" in successes
    books.usage.update(uses=1, successes=1)
    books.calls.pop()
    (reward, uses, successes) = problems(books.write(tmp_path / "half"))
    assert "was not rewarded for episode late" in reward and "its events 2 to 2" in uses and "its events 2" in successes


def test_an_episode_that_was_not_confirmed_may_be_missing_only_if_it_was_given_up(tmp_path: Path) -> None:
    books = Books()
    del books.metrics[1]["comprl/unreported_dropped"]
    vanished, reward, read = problems(books.write(tmp_path))
    assert vanished == "episode late of step 2 has vanished"
    assert reward == "call c was not rewarded for episode late, which had read it" and "late has read other" in read


def test_more_episodes_may_not_be_missing_than_were_given_up(tmp_path: Path) -> None:
    books = Books()
    books.episodes.append(episode("later", 3) | {"reported": False})
    books.metrics[2]["comprl/unreported"] = 1.0
    assert [problem.split()[1] for problem in problems(books.write(tmp_path))] == ["late", "later"]


def test_an_episode_whose_agent_loop_was_ended_by_a_stop_may_be_missing(tmp_path: Path) -> None:
    books = Books()
    books.metrics[1] |= {"comprl/unreported": 0.0, "comprl/unreported_dropped": 0.0}
    books.episodes[-1]["status"] = "dropped"
    assert problems(books.write(tmp_path)) == []


@pytest.mark.parametrize(("killed_in", "problem"), [(1, True), (4, False)])
def test_a_manager_that_was_killed_later_may_lose_uses_and_rewards_of_an_episode_that_it_took_late(
    tmp_path: Path, killed_in: int, problem: bool
) -> None:
    books = Books()
    books.late_was_taken()
    books.kill(killed_in)
    books.usage.update(uses=1, successes=1)
    books.calls.pop()
    assert len(problems(books.write(tmp_path / "counted"))) == (3 if problem else 0)
    books.waiting.remove("late")
    assert "episode late of step 2 has vanished" in problems(books.write(tmp_path / "vanished"))


@pytest.mark.parametrize(("killed_in", "problem"), [(2, False), (3, False), (1, True), (4, True)])
def test_a_killed_manager_may_lose_rewards_and_uses_of_its_last_steps_only(
    tmp_path: Path, killed_in: int, problem: bool
) -> None:
    books = Books()
    books.kill(killed_in)
    books.calls.pop(1)
    books.usage.update(uses=0, successes=0)
    found = problems(books.write(tmp_path))
    assert len(found) == (3 if problem else 0), found


@pytest.mark.parametrize(("unwritten", "problem"), [(3.5, False), (2.5, True)])
def test_a_killed_manager_may_lose_the_uses_that_it_had_not_written(
    tmp_path: Path, unwritten: float, problem: bool
) -> None:
    books = Books()
    books.metrics[2][UNWRITTEN] = unwritten  # seconds; a step takes three
    books.kill(4)
    books.usage.update(uses=0, successes=0)
    found = problems(books.write(tmp_path))
    assert len(found) == (2 if problem else 0), found


@pytest.mark.parametrize("closed", [False, True])
def test_steps_that_the_manager_has_not_closed_before_it_is_back_may_be_lost(tmp_path: Path, closed: bool) -> None:
    books = Books()
    if not closed:  # it took so long that the step ended without it
        del books.metrics[2][UNWRITTEN]
    books.kill(4)
    books.calls.pop(1)
    books.usage.update(uses=0, successes=0)
    found = problems(books.write(tmp_path))
    assert len(found) == (3 if closed else 0), found


def test_a_killed_manager_loses_no_episode_and_counts_none_twice(tmp_path: Path) -> None:
    books = Books()
    books.kill(2)
    books.waiting.clear()
    books.usage.update(uses=2)
    vanished, twice = problems(books.write(tmp_path))
    assert "second of step 2 has vanished" in vanished and "has 2 uses in room, its events 0 to 1" in twice


def test_entries_of_a_distillation_and_notes_of_them_after_a_kill_are_not_a_second_one(tmp_path: Path) -> None:
    books = Books()
    books.events += [{**books.events[0], "entry": "another"}, books.events[0]]
    books.calls.append({**call("m", "", 2), "kind": "merge", "episode": None})
    books.calls += [{**call(id, "", 2), "kind": "answer", "episode": None} for id in ("a", "b")]
    assert problems(books.write(tmp_path)) == []


def test_rewards_that_wait_for_the_free_half_are_no_problem(tmp_path: Path) -> None:
    books = Books()
    books.settings["utility"] = "relative"
    books.calls.pop(1)
    books.unpaid.append({"episode": "second", "record_id": "c"})
    assert problems(books.write(tmp_path)) == []


def test_episodes_of_the_step_in_which_the_run_was_stopped_are_known_by_their_events(tmp_path: Path) -> None:
    books = Books()
    books.events.append(read("left", 5))
    books.events.append({"event": "written", "entry": "e", "call": "d", "episode": "left", "step": 5})
    books.calls.append(use("c", "left"))
    assert problems(books.write(tmp_path / "not in the checkpoint")) == []
    books.usage.update(uses=2, successes=2)
    assert problems(books.write(tmp_path / "in the checkpoint")) == []


@pytest.mark.parametrize(
    ("step", "rewarded", "waits", "problem"),
    [(4, True, True, ""), (4, False, True, ""), (4, True, False, "left of step 4 has vanished"), (5, True, False, "")],
)
def test_episodes_of_a_step_in_which_the_run_was_stopped_are_on_record(
    tmp_path: Path, step: int, rewarded: bool, waits: bool, problem: str
) -> None:
    """Those of step 4 are in its checkpoint, which was written at the stop; those of step 5 are in none."""
    books = Books()
    books.episodes.append(episode("left", step, call="c") | {"status": "dropped"})
    books.events.append(read("left", 5))
    books.metrics += [{}] * (step == 4)  # of step 5, which was trained after a resume
    if rewarded:
        books.calls.append(use("c", "left"))
    if waits:
        books.waiting.append("left")
        books.usage.update(uses=2, successes=2)
    found = problems(books.write(tmp_path))
    assert len(found) == bool(problem) and all(problem in text for text in found), found


def test_what_a_checkpoint_has_counted_ahead_may_be_played_again_or_never_be_trained(tmp_path: Path) -> None:
    books = Books()
    books.reported |= {"again": 3, "never": 4}
    books.events += [read("again", 3), read("never", 4)]
    books.calls += [use("c", "again", 3), use("c", "never", 4)]
    books.usage = {"uses": 3, "successes": 3}
    books.episodes.append(episode("again", 5))  # its second play was free, after the checkpoint of step 4
    books.waiting.append("again")
    run = books.write(tmp_path)
    ahead = counted_ahead(run)
    assert ahead == {"again", "never"}
    assert problems(run, ahead) == []
    assert {problem.rpartition("episode ")[2].split(",")[0] for problem in problems(run)} >= {"again", "never"}


def test_what_was_counted_ahead_is_still_not_lost_and_not_counted_twice(tmp_path: Path) -> None:
    books = Books()
    books.metrics.append({})
    books.reported |= {"again": 3}
    books.events.append(read("again", 3))
    books.episodes.append(episode("again", 5))
    books.usage = {"uses": 3, "successes": 3}
    vanished, uses, successes = problems(books.write(tmp_path), {"again"})
    assert vanished == "episode again of step 5 has vanished"
    assert "has 3 uses in room, its events 1 to 2" in uses and "3 successes" in successes


@pytest.mark.parametrize("settings", [{"distill": False}, {"distill_share": 1e-9}])
def test_what_was_not_to_be_distilled_is_not_missed(tmp_path: Path, settings: dict[str, Any]) -> None:
    books = Books()
    books.settings.update(settings)
    books.waiting.clear()
    books.dead.clear()
    assert problems(books.write(tmp_path)) == []
