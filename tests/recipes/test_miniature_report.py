"""The miniature's report: what is read of a run, and what tables and figures say."""

import json
from pathlib import Path

import pytest

from env_adapters.vaults.world import code_of
from recipes.miniature.arms import ARMS
from recipes.miniature.entries import WORKED, moves_content
from recipes.miniature.figures import draw
from recipes.miniature.over_families import comparable, draw_over_families
from recipes.miniature.report import report
from recipes.miniature.rows import (
    merge_rows,
    merged,
    read_evaluations,
    read_health,
    read_journal,
    read_rows,
    read_staleness,
    read_training,
    stored_rows,
)
from recipes.miniature.tables import journal_table, paired_table, success_table, time_table
from verl_comprl.plot.style import COLOURS


def row(arm: str, seed: int, **last: float) -> dict:
    first = {mode: 0.1 for mode in last}
    return {
        "arm": arm,
        "batch": "3",
        "seed": seed,
        "seconds": {"rollouts": 3.0, "update": 2.0, "step": 6.0 + seed, "evaluation": 20.0},
        "training": {"15": last},
        "journal": {},
        "evaluations": {"0": first, "60": last},
    }


def test_tables_compare_the_same_seeds() -> None:
    rows = [
        row("complementary", 1, **{"with": 0.9, "without": 0.3}),
        row("complementary", 2, **{"with": 0.7, "without": 0.2}),
        row("baseline", 1, without=0.4),
        row("baseline", 2, without=0.4),
        row("baseline", 3, without=0.0),
    ]
    rows[1]["evaluations"]["120"] = {"with": 1.0, "without": 0.5}
    lines = success_table(rows).splitlines()
    assert "| 3 | complementary | with | .10 ± .00 | .80 ± .14 | 1.00 (1) | 60: .90 .70 |" in lines
    pairs = paired_table(rows).splitlines()
    # Differences .5 and .3: mean .4, standard deviation .1414, half interval 12.71 · .1414 / √2 = 1.27.
    assert "| 3 | complementary (with) − baseline (without) | +.40 ± 1.27 (2 of 2) | - |" in pairs
    assert "| 3 | complementary (without) − baseline (without) | -.15 ± .64 (0 of 2) | - |" in pairs
    assert not any("static_online" in line for line in pairs)
    assert "| 3 | static_online" not in "".join(pairs)
    assert "| 3 | complementary (with) − complementary (without) | +.55 ± .64 (2 of 2) | +.50 (1 of 1) |" in pairs
    assert "| 3 | baseline | 3.0 | 2.0 | 8.0 | 20.0 | 7.0 to 9.0 |" in time_table(rows).splitlines()
    trained = paired_table(rows, "training").splitlines()
    assert "| 3 | complementary (with) − baseline (without) | +.40 ± 1.27 (2 of 2) |" in trained


def test_staleness_stands_beside_success_where_a_run_has_it() -> None:
    rows = [row("complementary", seed, **{"with": 0.9, "without": 0.3}) for seed in (1, 2)] + [
        row("baseline", 1, without=0.4)
    ]
    assert "staleness" not in success_table(rows)
    rows[0]["staleness"], rows[1]["staleness"] = {"mean": 0.5, "largest": 3.0}, {"mean": 1.0, "largest": 2.0}
    head, _, *lines, blank, note = success_table(rows).splitlines()
    assert head.endswith("| last step of all seeds: each | staleness |")
    assert "| 3 | complementary | with | .10 ± .00 | .90 ± .00 | 60: .90 .90 | .75 (3) |" in lines
    assert "| 3 | baseline | without | .10 | .40 | 60: .40 | - |" in lines
    assert len({line.count("|") for line in (head, *lines)}) == 1
    assert not blank and note.startswith("Staleness: weight syncs by which trained episodes lagged behind")


def test_staleness_is_read_from_the_metrics_of_an_asynchronous_run(tmp_path: Path) -> None:
    mean, largest = (f"training/off_policy/trajectory_staleness{name}" for name in ("/mean", "_worst/max"))
    steps = [{mean: 0.0, largest: 0.0}, {mean: 0.5, largest: 2.0}, {mean: 1.0, largest: 1.0}, {}]
    assert read_staleness(steps) == {"mean": 0.5, "largest": 2.0}
    assert read_staleness(steps[:1]) == {}  # a synchronous trainer's, which verl measures too
    for name, data in (("complementary-3-1", steps[1]), ("baseline-3-1", steps[0])):
        run = tmp_path / name
        run.mkdir()
        (run / "finished.json").write_text("{}")
        (run / "evaluations.jsonl").write_text(json.dumps({"step": 0, "comprl/eval/success_without": 0.5}) + "\n")
        (run / "metrics.jsonl").write_text(json.dumps({"step": 1, "data": {"comprl/free/rollouts": 4} | data}) + "\n")
    synchronous, asynchronous = read_rows(tmp_path)
    assert "staleness" not in synchronous and asynchronous["staleness"] == {"mean": 0.5, "largest": 2.0}


def test_what_was_learned_is_shown_by_seed() -> None:
    rows = [row("complementary", 1, without=0.1), row("complementary", 2, without=0.1)]
    rows[0]["journal"] = {"15": {"right": 0.1, "extractor_reward": -0.5}, "120": {"right": 0.8}, "30": {"right": 0.3}}
    rows[1]["journal"] = {"15": {"right": 0.2}, "30": {"right": 0.5}}
    lines = journal_table(rows).splitlines()
    assert "| 3 | complementary | right | .15 .40 .80 | .10 → .80, .20 → .50 |" in lines
    assert "| 3 | complementary | extractor_reward | -.50 | -.50 → -.50 |" in lines


def test_the_journal_is_judged_by_the_codes_of_its_world(tmp_path: Path) -> None:
    code = code_of(7, "vault", "iron", 3)
    right = moves_content(code, WORKED)
    goal = "Open the iron vault amber fox."
    events = [
        {"step": 1, "event": "written", "episode": "0", "goal": goal, "title": "iron vault", "content": right},
        {"step": 15, "event": "written", "episode": "1", "goal": goal, "title": "amber fox", "content": right},
        {"step": 15, "event": "written", "episode": "2", "goal": goal, "title": "iron vault", "content": "seen: dust"},
        {"step": 16, "event": "written", "episode": "3", "goal": goal, "title": "iron garden", "content": right},
        {"step": 16, "event": "merged", "tasks": ["t"], "title": "iron vault", "content": right},
        {"step": 16, "event": "read", "episode": "b", "goal": goal, "text": f"iron vault\n{right}"},
        {"step": 16, "event": "read", "episode": "b", "goal": goal, "text": f"iron amber\n{right}"},
    ]
    file = tmp_path / "experience.jsonl"
    file.write_text("".join(json.dumps(event) + "\n" for event in events))
    found = read_journal(file, world=7)
    assert found["15"] == {"kind_family": 2 / 3, "right": 2 / 3, "good": 1 / 3, "coverage": 1.0}
    last = {"kind_family": 1.0, "right": 1.0, "good": 0.0, "coverage": 0.0, "read_rule": 0.5, "read_right": 1.0}
    assert found["30"] == last
    # The run went on from a checkpoint at which the first episode was still to be distilled, and was then cut off.
    again = {**events[0], "title": "iron amber"}
    with file.open("a") as stream:
        stream.write(json.dumps(again) + "\n" + json.dumps(events[0])[:20])
    resumed = read_journal(file, world=7)
    assert resumed["30"] == last
    assert resumed["15"] == {"kind_family": 1 / 3, "right": 2 / 3, "good": 0.0, "coverage": 0.0}
    assert read_journal(tmp_path / "none.jsonl", world=7) == {}


def test_training_is_read_by_window(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    step = {"comprl/guided/rollouts": 4.0}
    counts = [("written", 4.0), ("return", 3.0), ("unreadable", 1.0)]
    first = step | {f"comprl/distillations/{kind}": count for kind, count in counts}
    later = step | {"comprl/distillations/written": 10.0, "comprl/distillations/return": 5.0}
    later |= {"comprl/distillations/unreadable": 3.0, "comprl/extractor/reward": 0.5}
    later["comprl/bank/uses_per_entry"] = 0.75
    lines = [(0, {"comprl/eval/success_with": 1.0}), (15, first | {"comprl/extractor/reward": -0.5}), (16, later)]
    file.write_text("".join(json.dumps({"step": number, "data": data}) + "\n" for number, data in lines))
    found = read_health(file)
    assert found["15"] == {"extractor_reward": -0.5, "unreadable": 1 / 8}
    assert found["30"] == {"extractor_reward": 0.5, "uses_per_entry": 0.75, "unreadable": 2 / 10}
    assert merged({"15": {"right": 0.1}}, found)["15"] == {"right": 0.1} | found["15"]
    assert read_health(tmp_path / "none.jsonl") == {}


def test_a_run_that_goes_on_does_not_replace_what_it_had_evaluated(tmp_path: Path) -> None:
    file = tmp_path / "evaluations.jsonl"
    values = [(0, 0.1), (60, 0.5), (60, 0.9), (120, 0.8)]
    lines = [json.dumps({"step": step, "comprl/eval/success_with": value}) + "\n" for step, value in values]
    file.write_text("".join(lines))
    assert read_evaluations(file) == {"0": {"with": 0.1}, "60": {"with": 0.5}, "120": {"with": 0.8}}
    assert read_evaluations(file, every=120) == {"0": {"with": 0.1}, "120": {"with": 0.8}}


def test_the_evaluation_with_which_a_run_goes_on_between_two_others_is_left_out(tmp_path: Path) -> None:
    run = tmp_path / "baseline-3-1"
    run.mkdir()
    (run / "finished.json").write_text("{}")
    (run / "config.yaml").write_text("trainer:\n  test_freq: 30\n")
    lines = [json.dumps({"step": step, "comprl/eval/success_without": 0.5}) + "\n" for step in (0, 30, 58, 60)]
    (run / "evaluations.jsonl").write_text("".join(lines))
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, "data": {"comprl/free/rollouts": 4}}) + "\n")
    (row,) = read_rows(tmp_path)
    assert list(row["evaluations"]) == ["0", "30", "60"]


def test_success_in_training_is_read_by_half(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    halves = [{"comprl/guided/success": 0.5, "comprl/free/success": 0.25}, {"comprl/free/success": 0.75}]
    steps = [{"step": 14 + n, "data": {"comprl/free/rollouts": 4.0, **half}} for n, half in enumerate(halves)]
    file.write_text("".join(json.dumps(step) + "\n" for step in steps))
    assert read_training(file) == {"15": {"with": 0.5, "without": 0.5}}


def test_every_arm_has_a_colour() -> None:
    assert set(ARMS) == set(COLOURS)


def test_figures_end_where_most_seeds_are_missing(tmp_path: Path) -> None:
    rows = [row("complementary", seed, **{"with": 0.7, "without": 0.1}) for seed in (1, 2, 3)]
    rows += [row("baseline", seed, without=0.2) for seed in (1, 2)]
    rows[0]["evaluations"]["120"] = {"with": 1.0, "without": 0.5}
    rows[0]["journal"] = {"15": {"right": 0.1, "kind_family": 0.2, "read_right": 0.3}}
    files = draw(rows, tmp_path)
    assert {file.name for file in files} == {f"{n}.{s}" for n in ("success", "entries") for s in ("png", "svg")}
    assert "120" not in (tmp_path / "success.svg").read_text().split("<defs>")[0]


def test_numbers_of_families_are_compared_at_equal_prompts_per_family(tmp_path: Path) -> None:
    # 12 prompts of one family a step, so step 20 of it is step 60 of those with 4 of each.
    steps = {"0": {"with": 0.1}, "20": {"with": 0.5}, "60": {"with": 0.9}}
    rows = [{**row("complementary", 1), "batch": batch, "evaluations": steps} for batch in ("1x12", "2", "3")]
    rows.append({**row("baseline", 1), "evaluations": {"60": {"without": 0.3}}})
    most, values = comparable(rows)
    assert most == 240
    assert values == {"complementary": {1: [0.5], 2: [0.9], 3: [0.9]}, "baseline": {3: [0.3]}}
    assert {file.name for file in draw_over_families(rows, tmp_path)} == {"families.png", "families.svg"}
    assert draw_over_families(rows[2:], tmp_path) == []
    several_updates = [{**row("baseline", 1, without=0.2), "batch": batch} for batch in ("2u4", "3u4")]
    assert draw_over_families([*rows[2:], *several_updates], tmp_path) == []


def test_an_output_without_runs_is_said_and_not_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs/complementary-3-1").mkdir(parents=True)
    (tmp_path / "runs/complementary-3-1/finished.json").write_text("{}")
    assert not report(tmp_path)
    assert f"No run has finished in {tmp_path / 'runs'}." in capsys.readouterr().out


def test_rows_of_earlier_sessions_are_kept_and_longer_runs_win(tmp_path: Path) -> None:
    short, other = row("baseline", 1, without=0.2), row("baseline", 2, without=0.3)
    longer = row("baseline", 1, without=0.4)
    longer["evaluations"]["120"] = {"without": 0.5}
    again = row("baseline", 1, without=0.6)
    assert merge_rows([short, other], [longer]) == [longer, other]
    assert merge_rows([longer], [again]) == [longer]
    assert merge_rows([short], [again]) == [again]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in (short, other)))
    assert stored_rows(tmp_path / "rows.jsonl") == [short, other]
    assert stored_rows(tmp_path / "none.jsonl") == []


def test_a_report_can_be_made_over_several_outputs(tmp_path: Path) -> None:
    into = tmp_path / "into"
    into.mkdir()
    (into / "rows.jsonl").write_text(json.dumps(row("baseline", 1, without=0.2)) + "\n")
    (tmp_path / "empty/runs").mkdir(parents=True)
    assert report(tmp_path / "empty", into, add=True)
    assert "baseline" in (into / "tables.md").read_text()
    assert len(stored_rows(into / "rows.jsonl")) == 1
