"""Reading SWE-bench tasks, building dataset rows, and selecting tasks by success rate."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import env_adapters
from env_adapters.swebench import select
from env_adapters.swebench.dataset import build_rows
from env_adapters.swebench.instances import FIXTURES, Instance, data_file, load, parse_row, tasks_of

ROW = {
    "instance_id": "owner__repo-1",
    "repo": "owner/repo",
    "base_commit": "0123",
    "problem_statement": "It does not work.",
    "hints_text": "",
    "created_at": "2026-01-01",
    "patch": "diff",
    "test_patch": "diff",
    "version": "1.0",
    "environment_setup_commit": "0123",
    "FAIL_TO_PASS": '["t.py::a", "t.py::b"]',
    "PASS_TO_PASS": "[]",
}
NEW = {"image": "i:latest", "eval_script": "make", "log_parser": "parse_log_pytest", "eval_type": "pass_and_fail"}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows_of_both_versions_are_read() -> None:
    old = parse_row(ROW)
    assert old == parse_row(ROW | {"FAIL_TO_PASS": ["t.py::a", "t.py::b"], "PASS_TO_PASS": [], "image": None})
    assert old.FAIL_TO_PASS == ("t.py::a", "t.py::b") and old.PASS_TO_PASS == () and old.log_parser == ""
    new = parse_row(ROW | NEW)
    assert {name: getattr(new, name) for name in NEW} == NEW
    assert new.task_id == "swebench/owner__repo-1" and new.goal.endswith("owner/repo:\n\nIt does not work.")


def test_the_file_of_the_tasks_can_be_in_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_file("~/tasks.jsonl") == tmp_path / "tasks.jsonl"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"patch": None}, "patch"),
        ({"repo": 3}, "repo"),
        ({"FAIL_TO_PASS": "not json"}, "FAIL_TO_PASS"),
        ({"FAIL_TO_PASS": None}, "FAIL_TO_PASS"),
        ({"PASS_TO_PASS": [1]}, "PASS_TO_PASS"),
        ({"PASS_TO_PASS": 7}, "PASS_TO_PASS"),
    ],
)
def test_malformed_rows_are_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=f"'owner__repo-1': {field} is missing or malformed"):
        parse_row(ROW | change)


def test_json_lines_and_parquet_hold_the_same(tmp_path: Path) -> None:
    rows = [ROW | NEW | {"instance_id": f"owner__repo-{number}", "PASS_TO_PASS": ["x\u2028y"]} for number in range(5)]
    lines = write(tmp_path / "tasks.jsonl", rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "tasks.parquet")
    assert load(lines) == load(tmp_path / "tasks.parquet") == tuple(map(parse_row, rows))


def test_malformed_files_are_refused(tmp_path: Path) -> None:
    for name, rows in (("empty.jsonl", []), ("twice.jsonl", [ROW, ROW])):
        with pytest.raises(ValueError, match="no rows, or two with the same"):
            load(write(tmp_path / name, rows))
    for path in (tmp_path / "none.jsonl", write(tmp_path / "tasks.csv", [ROW]), tmp_path):
        with pytest.raises(ValueError, match="existing file"):
            load(path)


def test_the_split_depends_on_names_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [ROW | {"instance_id": f"owner__repo-{number}"} for number in range(20)]
    one, other = write(tmp_path / "a.jsonl", rows), write(tmp_path / "b.jsonl", rows[::-1])
    train, val = tasks_of("train", str(one), 0.25), tasks_of("val", str(one), 0.25)
    assert len(train) == 15 and len(val) == 5 and len({task.instance_id for task in train + val}) == 20
    assert tasks_of("val", str(other), 0.25) == val and tasks_of("val", str(one), 0.5)[:5] == val
    assert tasks_of("train", str(one), 0.0) != tasks_of("val", str(one), 1.0) or len(train + val) == 20
    monkeypatch.setenv("SWEBENCH_DATA", str(one))
    assert tasks_of("val", None, 0.25) == val
    with pytest.raises(ValueError, match="unknown split 'test'"):
        tasks_of("test", None, 0.25)
    with pytest.raises(ValueError, match=r"with held_out=1\.0 none of them is in 'train'"):
        tasks_of("train", None, 1.0)


def test_the_bundled_tasks_are_in_both_splits() -> None:
    train, val = tasks_of("train", None, 0.25), tasks_of("val", None, 0.25)
    assert (len(train), len(val)) == (6, 2)
    assert {task.instance_id for task in train + val} == {
        task.instance_id for task in load(FIXTURES / "instances.jsonl")
    }
    for task in train + val:
        assert len(task.FAIL_TO_PASS) >= 2 and task.PASS_TO_PASS and len(task.base_commit) == 40


def test_without_held_out_tasks_both_splits_have_all_of_them() -> None:
    rows = {split: build_rows(split, held_out=0) for split in ("train", "val")}
    train, val = ([row["extra_info"]["task_id"] for row in rows[split]] for split in ("train", "val"))
    assert train == val and len(train) == 8
    assert [row["extra_info"]["environment_options"] for row in rows["train"]] == [
        row["extra_info"]["environment_options"] for row in rows["val"]
    ]
    seeds = [{row["extra_info"]["seed"] for row in rows[split]} for split in ("train", "val")]
    assert not seeds[0] & seeds[1]


def test_rows_have_the_expected_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = build_rows("val", max_turns=7, timeout=5.0)
    assert [row["extra_info"]["seed"] for row in rows] == [1, 3]
    options = json.loads(rows[0]["extra_info"]["environment_options"])
    assert options["data"] == "bundled" and options["max_turns"] == 7
    environment = env_adapters.make("swebench", **options)
    for row, task in zip(rows, tasks_of("val", None, 0.25), strict=True):
        assert row["extra_info"]["task_id"] == task.task_id
        assert [message["content"] for message in row["prompt"]] == [environment.instructions, task.goal]
    assert {row["data_source"] for row in rows} == {"swebench-bundled"}, "not under the benchmark's name"
    monkeypatch.setenv("SWEBENCH_DATA", str(tmp_path / "nowhere.jsonl"))
    assert len(tasks_of("val", options["data"], 0.25)) == 2, "rows do not depend on the variable"
    monkeypatch.delenv("SWEBENCH_DATA")
    again = build_rows("train", 9)
    assert [row["extra_info"]["task_id"] for row in again[6:]] == [row["extra_info"]["task_id"] for row in again[:3]]
    assert build_rows("train", 2, seed=3)[0]["extra_info"]["seed"] == 2 * 3 * 2**20
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "tasks.jsonl", [ROW])
    row = build_rows("val", data="tasks.jsonl", held_out=1.0)[0]
    assert row["data_source"] == "swebench"
    assert json.loads(row["extra_info"]["environment_options"])["data"] == str(tmp_path / "tasks.jsonl")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "test"}, "unknown split 'test'"),
        ({"count": 0}, "count .* got 0"),
        ({"seed": -1}, "seed .* got -1"),
        ({"max_turns": 0}, "max_turns .* got 0"),
        ({"backend": "x"}, "unknown backend 'x'"),
        ({"timeout": -1.0}, "timeout must be positive"),
        ({"test_timeout": 0}, "timeout must be positive"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_rows(**{"split": "train", **arguments})


def rollouts(**successes: int) -> list[dict[str, Any]]:
    """Return sixteen attempts of each task, with the given number of successes."""
    return [
        {"task_id": f"swebench/owner__{name}", "success": attempt < successes[name], "reward": 0.5}
        for attempt in range(16)
        for name in successes
    ]


def test_tasks_solved_at_least_once_and_below_80_percent_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # 13 of 16 are 81 %, 12 of 16 are 75 %.
    attempts = rollouts(never=0, once=1, often=12, mostly=13, always=16, unknown=3)
    found = select.read_attempts(attempts)
    assert (sum(found["owner__once"]), sum(found["owner__often"])) == (1, 12)
    assert [select.is_kept(rate) for rate in (0.0, 0.01, 0.79, 0.8, 1.0)] == [False, True, True, False, False]
    names = ("never", "once", "often", "mostly", "always", "untried")
    data = write(tmp_path / "tasks.jsonl", [ROW | {"instance_id": f"owner__{name}"} for name in names])
    output = tmp_path / "kept.jsonl"
    arguments = ["--rollouts", str(write(tmp_path / "r.jsonl", attempts)), "--output", str(output), "--data", str(data)]
    assert select.main(arguments) == 2 and not output.exists()
    assert "1 tasks do not have 16 attempts, such as 'owner__untried' with 0" in capsys.readouterr().err
    assert select.main([*arguments, "--attempts", "0"]) == 0
    assert [task.instance_id for task in load(output)] == ["owner__once", "owner__often"]
    assert json.loads(capsys.readouterr().out) == {
        "tasks": 6,
        "attempted": 6,
        "kept": 2,
        "not in the data": 1,
        "output": str(output),
    }


def test_an_attempt_whose_environment_failed_does_not_count() -> None:
    failed = {"task_id": "swebench/a", "success": False, "error": "the sandbox has ended"}
    played = {"task_id": "swebench/a", "success": True, "error": None}
    assert select.read_attempts([failed, played, failed]) == {"a": [True]}


@pytest.mark.parametrize(
    "rollout", [{}, {"task_id": "a"}, {"task_id": 1, "success": 1}, {"task_id": "a", "success": "yes"}]
)
def test_malformed_rollouts_are_refused(
    rollout: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="rollout 2 needs"):
        select.read_attempts([{"task_id": "a", "success": True}, rollout])
    path = write(tmp_path / "r.jsonl", [rollout])
    assert select.main(["--rollouts", str(path), "--output", str(tmp_path / "o.jsonl")]) == 2
    assert "error: rollout 1 needs" in capsys.readouterr().err and not (tmp_path / "o.jsonl").exists()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"[1]", "is no JSON object: '[1]'"),
        (b"null", "is no JSON object: 'null'"),
        ('"\x9b31m\u202eowned"'.encode(), "is no JSON object: '\"\\x9b31m\\u202eowned\"'"),
        (b"[" * 100_000, "is not JSON: maximum recursion depth"),
        (b"\x1b{", "is not JSON"),
        (b"\xff", "is not JSON"),
    ],
)
@pytest.mark.parametrize("option", ["--rollouts", "--data"])
def test_a_line_of_another_form_is_named(
    line: bytes, why: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {"--rollouts": {"task_id": "a", "success": True}, "--data": ROW}
    files = {name: write(tmp_path / f"{name}.jsonl", [row]) for name, row in good.items()}
    with files[option].open("ab") as file:
        file.write(b"\n" + line)
    arguments = [text for name, file in files.items() for text in (name, str(file))]
    assert select.main([*arguments, "--output", str(tmp_path / "kept.jsonl"), "--attempts", "0"]) == 2
    error = capsys.readouterr().err
    assert f"error: {files[option]}, line 3 {why}" in error and error.count("\n") == 1 and error[:-1].isprintable()
    assert not (tmp_path / "kept.jsonl").exists()


def test_data_without_names_of_tasks_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rollouts = write(tmp_path / "r.jsonl", [{"task_id": "a", "success": True}])
    data = write(tmp_path / "data.jsonl", [ROW, {"a": 1}])
    arguments = ["--rollouts", str(rollouts), "--data", str(data), "--output", str(tmp_path / "o.jsonl")]
    assert select.main(arguments) == 2
    assert capsys.readouterr().err == f"error: {data}: row 2 has no instance_id\n"


def test_loaded_tasks_are_cached() -> None:
    assert isinstance(load(FIXTURES / "instances.jsonl")[0], Instance)
    assert load(FIXTURES / "instances.jsonl") is load(FIXTURES / "instances.jsonl")
