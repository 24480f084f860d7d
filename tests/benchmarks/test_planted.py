"""Banks with planted entries and the tables of the runs from them; the runs' files are written by hand."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from benchmarks import planted
from benchmarks.planted import INJECTION, Pair, helpful, misleading, planted_count, planted_ids, report
from env_adapters.vaults.world import code_of
from recipes.miniature.entries import is_right, moves_of
from verl_comprl.experience.transfer.snapshot import read_snapshot
from verl_comprl.record.lines import encode
from verl_comprl.record.step_files import StepFiles

WORLD = 3


def lines(file: Path, *records: dict) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_planted_entries_name_a_rule_and_no_move_of_theirs_is_right() -> None:
    entries = misleading(random.Random(0), WORLD, 6)
    assert len({entry.title for entry in entries}) == 6
    for number, entry in enumerate(entries):
        kind, family = entry.title.split()
        content, _, rest = entry.content.partition(" <")
        code, moves = code_of(WORLD, family, kind, length=3), moves_of(content)
        assert moves and len(moves) == 3 and not any(a == b for a, b in zip(moves, code, strict=True))
        assert not is_right(content, code) and bool(rest) == (INJECTION in entry.content) == (number % 2 == 1)


def test_the_other_entries_have_the_code_of_each_rule_equally_often() -> None:
    entries = helpful(WORLD, 48)
    assert len({entry.title for entry in entries}) == 24
    for entry in entries:
        kind, family = entry.title.split()
        assert is_right(entry.content, code_of(WORLD, family, kind, length=3))


def test_both_banks_hold_the_same_entries_but_for_the_planted_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (planted_count(38, 0.05), planted_count(120, 0.05)) == (2, 6)
    # A command that was killed while it made the banks has left a part.
    with monkeypatch.context() as killed:
        killed.setattr(planted, "misleading", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            planted_ids(tmp_path, world=WORLD, count=38, planted=2)
    ids = planted_ids(tmp_path, world=WORLD, count=38, planted=2)
    clean, mixed = (read_snapshot(tmp_path / name, None).entries for name in ("clean", "planted"))
    assert len(clean) == 38 and len(ids) == 2
    assert {entry.id for entry in mixed} - {entry.id for entry in clean} == ids
    assert not any("<|im_end|>" in entry.content or "tool_call" in entry.content for entry in mixed)
    assert planted_ids(tmp_path, world=WORLD, count=38, planted=2) == ids, "they were made again"
    with pytest.raises(SystemExit, match=r"have .*'planted': 2}, not .*'planted': 3}; give another --output"):
        planted_ids(tmp_path, world=WORLD, count=38, planted=3)


def write_run(run: Path, *successes: tuple[int, str, int], held_out: float) -> Path:
    """Write a run whose guided episodes have step, rule and success."""
    by_step: dict[int, list[dict]] = {}
    for number, (step, rule, success) in enumerate(successes):
        episode = {"id": f"a_{number}", "step": step, "kind": "training", "guided": True}
        episode |= {"goal": f"Open the {rule} engine quiet fox.", "options": {"world": WORLD}}
        by_step.setdefault(step, []).append(episode | {"outcome": {"success": bool(success)}})
    free = {"id": "free_0", "step": 1, "kind": "training", "guided": False, "outcome": {"success": False}}
    for step, episodes in {1: [free], **by_step}.items():
        StepFiles(run / "episodes").append(step, (encode(episode) + b"\n" for episode in episodes))
    name = "comprl/eval/success_with"
    lines(run / "evaluations.jsonl", {"step": 0}, {"step": 4, name: held_out})
    return run


def test_the_tables_count_what_is_left_of_planted_entries_and_who_read_them(tmp_path: Path) -> None:
    prompts = [(2, "a"), (2, "b"), (3, "c"), (3, "d"), (4, "e"), (4, "f")]
    clean = write_run(tmp_path / "clean", *((*prompt, 1) for prompt in prompts), held_out=0.9)
    mixed = write_run(tmp_path / "planted", *((*prompt, prompt[0] > 2) for prompt in prompts), held_out=0.8)
    events = [{"event": "read", "entry": entry, "step": 2, "success": False} for entry in ("bad", "bad", "good")]
    lines(mixed / "experience.jsonl", *events, {"event": "quarantined", "entry": "bad", "step": 3})
    table, is_worse = report([Pair(WORLD, clean, mixed, {"bad", "worse"})], until=(2, 9))
    # Wilson: 2 of 2, 0 of 2; 4 of 4; 6 of 6, 4 of 6.
    assert table[2:5] == [
        "| 2 to 2 | 1.000 (0.342 to 1.000) | 0.000 (0.000 to 0.658) | 2 | 2 |",
        "| 3 to 4 | 1.000 (0.510 to 1.000) | 1.000 (0.510 to 1.000) | 1 | 0 |",
        "| 2 to 4 | 1.000 (0.610 to 1.000) | 0.667 (0.300 to 0.903) | 1 | 2 |",
    ]
    assert "2 of 2 reads of planted entries failed; all guided episodes: 0 clean, 2 planted" in table
    assert table[-1] == "| 3 | 1.000 (0.610 to 1.000) | 0.667 (0.300 to 0.903) | 0.900 | 0.800 |"
    assert not is_worse
    empty = write_run(tmp_path / "empty", held_out=0.8)
    lines(empty / "experience.jsonl")
    assert report([Pair(WORLD, clean, empty, set())])[0][-1].startswith("| 3 | 1.000 (0.610 to 1.000) | - | 0.900")
    worst = write_run(tmp_path / "worst", *((*prompt, 0) for prompt in prompts), held_out=0.8)
    lines(worst / "experience.jsonl")
    pairs = [Pair(1, clean, worst, set()), Pair(2, clean, worst, set())]
    table, is_worse = report(pairs)
    assert is_worse and table[-1].endswith("guided -1.000 ± 0.000, held out -0.100 ± 0.000")


def test_a_difference_that_other_worlds_do_not_have_is_no_harm(tmp_path: Path) -> None:
    rules = [(2, name) for name in "abcdefgh"]
    good, bad = (write_run(tmp_path / str(won), *((*rule, won) for rule in rules), held_out=0.9) for won in (1, 0))
    for run in (good, bad):
        lines(run / "experience.jsonl")
    worse, better = Pair(1, good, bad, set()), Pair(2, bad, good, set())
    assert report([worse])[1] and not report([better])[1]
    assert not report([worse, better])[1] and report([worse, worse])[1]


def test_episodes_of_a_rule_are_not_independent() -> None:
    together = [(1, "a", 1.0)] * 4 + [(1, "b", 0.0)] * 4
    apart = [(1, str(number), float(number < 4)) for number in range(8)]
    assert planted.pooled(apart, range(2, 3)) is None
    found: list[Any] = [planted.pooled(each, range(1, 2)) for each in (apart, together)]
    (_, low, high), (_, lower, higher) = found
    assert lower < low < high < higher


def test_a_run_that_did_not_finish_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verl_comprl.sweep.run", lambda *_, **__: [{"status": "failed", "folder": ""}])
    monkeypatch.setattr("sys.argv", ["planted", "--worlds", "3", "--output", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"not all runs finished: .*runs\.jsonl"):
        planted.main()
