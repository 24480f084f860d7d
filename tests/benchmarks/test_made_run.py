"""A made run has the records that a real one has, as docs/run_folder.md and the tests of what writes them name them."""

import pytest
from run_folder_page import BANK, CALL, EPISODE, TURN, bank_event, call_event, rows, within

from benchmarks.made_run import make_run
from verl_comprl.record import RunRecord


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    """A run in which everything happens that happens in a made one."""
    folder = tmp_path_factory.mktemp("made") / "run"
    make_run(folder, steps=6, prompts=3, written=12, seed=3)
    return RunRecord(folder)


def test_its_episodes_have_the_keys_of_recorded_ones(run: RunRecord) -> None:
    episodes = list(run.episodes())
    turns = [turn for episode in episodes for turn in episode["turns"]]
    assert all(episode.keys() == rows(EPISODE).keys() for episode in episodes)
    assert all(turn.keys() == rows(TURN).keys() for turn in turns)
    for part in ("guide", "outcome", "seconds", "tokens"):
        found = [episode[part].keys() for episode in episodes if episode[part] is not None]
        assert found and all(keys == within(EPISODE, part) for keys in found)
    questions = [question.keys() for turn in turns for question in turn["questions"]]
    assert questions and all(keys == within(TURN, "questions") for keys in questions)


def test_its_calls_have_the_keys_of_recorded_ones(run: RunRecord) -> None:
    events = list(run.call_events())
    assert {event["event"] for event in events} == {"call", "use", "trained"}
    assert {event["kind"] for event in events if event["event"] == "call"} == {"distill", "merge", "answer"}
    assert all(event.keys() == call_event(event["event"]) for event in events)
    calls = list(run.calls())
    assert all(call["tokens"].keys() == within(CALL, "tokens") for call in calls)
    errors = [error.keys() for call in calls for error in call["errors"]]
    assert errors and all(keys == within(CALL, "errors") for keys in errors)


def test_its_bank_has_the_events_of_a_recorded_one(run: RunRecord) -> None:
    events = list(run.events())
    assert rows(BANK).keys() > {event["event"] for event in events} == {"written", "merged", "read", "removed"}
    assert all(event.keys() == bank_event(event["event"]) for event in events)
