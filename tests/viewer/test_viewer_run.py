"""The data that are collected of a run, against its files."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from run_files import unpack

from verl_comprl.algorithm.interval import effective_count, wilson_interval
from verl_comprl.record import RunRecord
from verl_comprl.record.lines import encode
from verl_comprl.record.step_files import StepFiles
from verl_comprl.viewer import run
from verl_comprl.viewer.entries import Entries
from verl_comprl.viewer.episodes import Episodes
from verl_comprl.viewer.run import CollectedRun


def collect(folder: Path, kept: int | None = None) -> dict[str, Any]:
    """Blocks of a run by name."""
    return {block.name: unpack(block) for block in CollectedRun(folder, "name", kept).blocks("r")}


def details(blocks: dict[str, Any], table: str) -> list[Any]:
    return [row for name, rows in blocks.items() if name.startswith(f"r/{table}/") for row in rows]


def test_episodes_and_calls_are_all_there(made: Path) -> None:
    blocks = collect(made)
    episodes, calls = [*RunRecord(made).episodes()], [*RunRecord(made).call_events()]
    assert details(blocks, "episodes") == episodes
    assert blocks["r/episodes"]["columns"]["id"] == [episode["id"] for episode in episodes]
    made_calls = [call["call"] for call in calls if call["event"] == "call"]
    columns = blocks["r/calls"]["columns"]
    assert columns["id"] == made_calls
    uses = [call["reward"] for call in calls if call["event"] == "use" and call["call"] == made_calls[0]]
    assert columns["reward"][0] == (pytest.approx(sum(uses) / len(uses)) if uses else None)
    assert sum(columns["uses"]) == sum(call["event"] == "use" for call in calls)


def test_an_entrys_success_is_that_of_the_episodes_that_it_guided(made: Path) -> None:
    columns = collect(made)["r/entries"]["columns"]
    episodes = [*RunRecord(made).episodes()]
    used = 0
    for id, uses, rate, free in zip(*(columns[name] for name in ("id", "uses", "rate", "free")), strict=True):
        guided = [item for item in episodes if item["guide"] and item["guide"]["entry"] == id]
        assert uses == len(guided)
        if guided:
            used += 1
            halves = []
            for episode in guided:
                others = [x for x in episodes if x["prompt"] == episode["prompt"] and not x["guided"]]
                halves.append(sum(x["outcome"]["success"] for x in others) / len(others))
            assert rate == pytest.approx(sum(x["outcome"]["success"] for x in guided) / uses)
            assert free == pytest.approx(sum(halves) / uses)
    assert used > 3


def test_of_many_episodes_whole_steps_are_kept_with_the_last(made: Path) -> None:
    blocks = collect(made, kept=50)
    kept = [row["step"] for row in details(blocks, "episodes") if row]
    assert {*kept} == {3, 6} and len(kept) == 48
    assert len(blocks["r/episodes"]["columns"]["id"]) == 144 and blocks["r"]["kept"] == 48
    assert collect(made)["r"]["kept"] == 144


@pytest.mark.parametrize("added", [1, 240])
def test_an_unfinished_step_or_an_evaluation_does_not_change_how_many_are_kept(
    made: Path, tmp_path: Path, added: int
) -> None:
    """One more episode is of a step of its own, many are of an evaluation after the last step."""
    folder = tmp_path / "run"
    shutil.copytree(made, folder)
    step = 7 if added == 1 else 6
    more = next(RunRecord(made).episodes()) | {"step": step, "kind": "evaluation"}
    StepFiles(folder / "episodes").append(step, [encode(more | {"id": f"e_{n}"}) + b"\n" for n in range(added)])
    kept = {row["step"] for row in details(collect(folder, kept=50), "episodes") if row}
    assert kept == ({4, 7} if added == 1 else {3, 6})


def test_questions_count_if_they_were_answered() -> None:
    answers = (("answered", "own"), ("malformed", "own"), ("answered", "other"))
    asked = [{"query": "?", "status": status, "entry": entry} for status, entry in answers]
    record = {"id": "p_0", "guided": True, "guide": {"entry": "own"}, "turns": [{"questions": asked[:2]}]}
    episodes = Episodes()
    episodes.add(record | {"unfinished": {"questions": asked[2:]}}, Entries(), True)
    columns = unpack(next(iter(episodes.blocks("e"))))["columns"]
    assert columns["answered"] == [2] and columns["asked"] == [["other"]]


def test_of_a_large_run_not_all_turns_are_kept_unless_asked_for(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_on_disk = sum(file.stat().st_size for file in (made / "episodes").iterdir())
    monkeypatch.setattr(run, "KEPT", 50)
    for large, default in ((bytes_on_disk, 144), (bytes_on_disk - 1, 48)):
        monkeypatch.setattr(run, "LARGE", large)
        assert sum(map(bool, details(collect(made), "episodes"))) == default
        assert all(details(collect(made, kept=0), "episodes"))


def test_a_run_without_experience_has_curves_only(made: Path, tmp_path: Path) -> None:
    shutil.copy(made / "metrics.jsonl", tmp_path)
    blocks = collect(tmp_path)
    assert blocks["r"]["curves"] and blocks["r"]["facts"] == [] and blocks["r/entries"]["columns"] == {}


def test_the_heading_has_models_and_size(made: Path) -> None:
    facts = dict(collect(made)["r"]["facts"])
    assert facts["actor"] == "Qwen2.5-1.5B-Instruct" and facts["prompts per step"] == 3 and facts["steps"] == 6


@pytest.mark.parametrize(
    ("comprl", "extractor"),
    [
        ("{arm: complementary}", "Qwen3-0.6B"),
        ("{arm: baseline, experience: false}", None),
        ("{extractor: {backend: endpoint, endpoint: {model: org/large}}}", "large"),
        ("{extractor: {backend: actor}}", "Qwen2.5-1.5B-Instruct"),
    ],
)
def test_the_heading_names_the_extractor_that_the_run_has(
    made: Path, tmp_path: Path, comprl: str, extractor: str | None
) -> None:
    shutil.copy(made / "metrics.jsonl", tmp_path)
    config = (made / "config.yaml").read_text().replace("{arm: complementary}", comprl)
    (tmp_path / "config.yaml").write_text(config)
    assert dict(collect(tmp_path)["r"]["facts"]).get("extractor") == extractor


def test_intervals_of_training_are_those_of_its_prompts(made: Path) -> None:
    curve = collect(made)["r"]["curves"][0]
    assert curve["title"] == "Success in training" and curve["note"] == "each step, 95 % intervals"
    free = [item for item in RunRecord(made).episodes([6]) if not item["guided"]]
    outcomes = [(item["prompt"], item["outcome"]["success"]) for item in free]
    shown = next(item for item in curve["series"] if item["label"] == "without")
    count = effective_count(outcomes)
    expected = wilson_interval(count * sum(success for _, success in outcomes) / len(outcomes), count)
    assert (shown["low"][-1], shown["high"][-1]) == pytest.approx(expected)


def test_a_failed_episode_is_shown_and_counted_nowhere_else(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(made, folder)
    failed = next(RunRecord(made).episodes()) | {"id": "broken_0", "status": "failed", "turns": [], "outcome": None}
    failed |= {"error": {"boundary": "environment", "type": "OSError", "text": "gone"}, "guide": None, "guided": False}
    with gzip.open(folder / "episodes" / "step_7.jsonl.gz", "wt") as file:
        file.write(json.dumps(failed) + "\n{torn")
    blocks = collect(folder)
    assert blocks["r"]["failures"] == {"environment": 1}
    assert blocks["r/episodes"]["columns"]["success"][-1] is None
    assert blocks["r/entries"] == collect(made)["r/entries"]


def test_failed_rollouts_are_counted_without_their_episodes(made: Path, tmp_path: Path) -> None:
    shutil.copy(made / "metrics.jsonl", tmp_path)
    failed = [{"id": f"p_{number}", "boundary": "server" if number else "environment"} for number in range(3)]
    (tmp_path / "failures.jsonl").write_text("".join(json.dumps(line) + "\n" for line in failed))
    assert collect(tmp_path)["r"]["failures"] == {"environment": 1, "server": 2}


@pytest.mark.parametrize("content", [None, "a file"])
def test_a_folder_that_is_no_run_is_refused(content: str | None, tmp_path: Path) -> None:
    if content:
        (tmp_path / "note.txt").write_text(content)
    with pytest.raises(FileNotFoundError, match=r"not the folder of a run.*metrics\.jsonl"):
        CollectedRun(tmp_path, "name", 0)


def test_a_run_that_is_starting_has_nothing_to_show_yet(tmp_path: Path) -> None:
    for name in ("train.log", "config.yaml"):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).touch()
        with pytest.raises(FileNotFoundError, match=f"^{folder} has nothing recorded yet; try again after the first "):
            CollectedRun(folder, "name", 0)
