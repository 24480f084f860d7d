"""``comprl data``: rows from which an episode can be played, or an error of one line."""

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from env_adapters import make
from verl_comprl.cli.main import main


def command(output: Path, *more: str, environment: str = "minihack", count: str = "5") -> list[str]:
    return [
        *("data", environment, "--variant", "room-random", "--split", "train", "--count", count),
        *("--output", str(output), *more),
    ]


def test_rows_are_written_and_can_be_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "new" / "train.parquet"
    assert main(command(output, "--max-turns", "7", "--seed", "2")) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary == {"rows": 5, "data_source": "minihack/room-random", "output": str(output)}
    rows = pq.read_table(output).to_pylist()
    assert len(rows) == 5 and len({row["extra_info"]["seed"] for row in rows}) == 5
    assert {row["agent_name"] for row in rows} == {"comprl_agent"}
    details = rows[0]["extra_info"]
    environment = make(details["environment"], **json.loads(details["environment_options"]))
    _, info = environment.reset(seed=details["seed"])
    assert info["task_id"] == details["task_id"] and environment.max_turns == 7
    assert rows[0]["prompt"][-1] == {"role": "user", "content": environment.goal}
    environment.close()


def test_rows_depend_on_seed_and_split_only(tmp_path: Path) -> None:
    seeds = []
    for name, more in {"a": [], "b": [], "c": ["--seed", "1"], "d": ["--split", "val"]}.items():
        assert main(command(tmp_path / name, *more)) == 0
        seeds.append({row["extra_info"]["seed"] for row in pq.read_table(tmp_path / name).to_pylist()})
    assert seeds[0] == seeds[1] and not seeds[0] & seeds[2] and not seeds[0] & seeds[3]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--variant", "castle"], "comprl data: unknown .*'castle'.*room-ultimate"),
        (["--count", "0"], "comprl data: count must be .*got 0"),
        (["--seed", "-1"], "comprl data: seed must be .*got -1"),
        (["--max-turns", "0"], "comprl data: max_turns must be a positive integer, got 0"),
    ],
)
def test_a_bad_value_is_one_line_and_writes_nothing(
    tmp_path: Path, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "train.parquet"
    assert main(command(output, *more)) == 2
    shown = capsys.readouterr().err
    assert re.search(message, shown) and shown.count("\n") == 1
    assert not output.exists()


def test_options_of_the_environment_are_passed_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "train.parquet"
    given = ["data", "minihack", "-o", "variant=room", "--split", "val", "--count", "2", "--option", "max_turns=9"]
    assert main([*given, "--output", str(output)]) == 0
    details = pq.read_table(output).to_pylist()[0]["extra_info"]
    assert json.loads(details["environment_options"]) == {"variant": "room", "protocol": "paper", "max_turns": 9}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ["-o", "size=5"],
            "'minihack' has no option 'size'; its options: variant, split, count, seed, protocol, max_turns",
        ),
        (["-o", "size"], "option 'size' must look like name=value"),
        (["-o", "max_turns=many"], "max_turns must be a positive integer, got 'many'"),
    ],
)
def test_a_bad_option_is_an_error_of_one_line(
    tmp_path: Path, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(tmp_path / "x", *more)) == 2
    shown = capsys.readouterr().err
    assert message in shown and shown.count("\n") == 1


def test_an_environment_with_unlimited_tasks_needs_a_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "minihack", "--variant", "room", "--split", "val", "--output", str(tmp_path / "x")]) == 2
    assert "needs --count" in capsys.readouterr().err


def test_a_missing_variant_is_named_in_the_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "train.parquet"
    assert main(["data", "minihack", "--split", "train", "--count", "1", "--output", str(output)]) == 2
    shown = capsys.readouterr().err
    assert "variant" in shown and shown.count("\n") == 1


def test_an_unknown_environment_lists_the_known_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(tmp_path / "x", environment="chess")) == 2
    shown = capsys.readouterr().err
    assert "unknown environment 'chess'; known:" in shown and "minihack" in shown


def test_a_folder_as_output_is_refused_before_tasks_are_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(tmp_path, count="0")) == 2
    line = f"comprl data: --output {tmp_path} is a folder; name a file, such as {tmp_path / 'tasks.parquet'}\n"
    assert capsys.readouterr().err == line


def test_a_path_that_cannot_be_written_is_named_in_the_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(command(tmp_path / "file" / "train.parquet")) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err
