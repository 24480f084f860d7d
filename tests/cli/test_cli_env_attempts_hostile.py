"""``comprl env attempts`` with files that something else has written, before anything is asked or played."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chat_endpoint import ChatEndpoint
from starlette.responses import Response

from env_adapters import dataset_builder
from examples.own_environment.guess import GuessEnvironment
from verl_comprl.cli import main

DEEP = "[" * 100_000


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    return dataset_builder("examples.own_environment.guess:GuessEnvironment")(split="val", count=2, max_turns=8)


def attempts(rows: list[dict[str, Any]], output: Path, endpoint: str = "http://127.0.0.1:9/v1") -> int:
    data = output.with_suffix(".parquet")
    pq.write_table(pa.Table.from_pylist(rows), data)
    command = ["--data", data, "--output", output, "--endpoint", endpoint, "--model", "m"]
    return main.main(["env", "attempts", *map(str, command)])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("[1]", "is no JSON object: '[1]'"),
        ("null", "is no JSON object: 'null'"),
        (DEEP, "is not JSON: maximum recursion depth"),
        ("\x1b{", "is not JSON"),
        ('{"a": 1}', "is no attempt: it needs task_id"),
        ('{"task_id": ["a"], "seed": 1, "attempt": 0}', "is no attempt: it needs task_id"),
    ],
)
def test_an_output_of_another_kind_is_one_line_and_stays(
    line: str, why: str, rows: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "attempts.jsonl"
    content = '{"task_id": "a", "seed": 1, "attempt": 0}\n\n' + line + "\nrest"
    output.write_text(content)
    assert attempts(rows, output) == 2
    error = capsys.readouterr().err
    assert f"{output}, line 3 {why}" in error and error.count("\n") == 1 and error[:-1].isprintable()
    assert len(error) < 500 and output.read_text() == content


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"extra_info": "environment environment_options seed task_id"}, "row 0 has no environment, "),
        ({"prompt": "text"}, "row 0 has a prompt that is no list of messages: 'text'"),
        ({"prompt": ["text"]}, "row 0 has a prompt that is no list of messages: "),
        ({"prompt": [{"role": "user"}]}, "row 0 has a prompt that is no list of messages: "),
    ],
)
def test_data_of_another_kind_are_one_line(
    changes: dict[str, Any],
    why: str,
    rows: list[dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert attempts([row | changes for row in rows], tmp_path / "attempts.jsonl") == 2
    error = capsys.readouterr().err
    assert f"--data {tmp_path / 'attempts.parquet'}: {why}" in error and error.count("\n") == 1


@pytest.mark.parametrize("options", [DEEP, "[1]", "{", "null"])
def test_options_of_another_kind_are_one_line(
    options: str, rows: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows[1]["extra_info"]["environment_options"] = options
    assert attempts(rows, tmp_path / "attempts.jsonl") == 2
    error = capsys.readouterr().err
    assert re.search(r"row 1 has environment_options that are no JSON object: '[\[{n]", error) and len(error) < 400
    assert error.count("\n") == 1 and not (tmp_path / "attempts.jsonl").exists()


def test_lines_of_the_documented_form_are_read(
    rows: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "attempts.jsonl"
    known = ({key: row["extra_info"][key] for key in ("task_id", "seed")} for row in rows)
    output.write_text("".join(json.dumps(fields | {"attempt": n}) + "\n" for fields in known for n in range(16)))
    assert attempts(rows, output) == 0
    assert json.loads(capsys.readouterr().out)["played"] == 0


def test_neither_a_task_nor_a_refusal_can_control_the_terminal(
    rows: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint = ChatEndpoint(lambda _: "")
    endpoint.failures = [Response("\x1b[2J\u202eowned\x07", 400)] * 99
    endpoint.server.start()
    for row in rows:
        row["extra_info"]["task_id"] += "\x1b]0;mine\x9b"
    assert attempts(rows, tmp_path / "attempts.jsonl", endpoint.url) == 2
    endpoint.server.stop()
    error = capsys.readouterr().err
    assert "mine" in error and "owned" in error and not set(error) & set("\x1b\u202e\x07\x9b")


def test_no_secret_gets_into_the_output_or_onto_the_terminal(
    rows: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SITE_API_KEY", "canary-0123456789")

    def fail(self: GuessEnvironment, seed: int, options: dict[str, Any]) -> str:
        raise RuntimeError("cannot log in with canary-0123456789")

    endpoint = ChatEndpoint(lambda _: "")
    endpoint.failures = [Response("wrong key: canary-0123456789", 400)] * 99
    endpoint.server.start()
    assert attempts(rows, tmp_path / "refused.jsonl", endpoint.url) == 2
    endpoint.server.stop()
    monkeypatch.setattr(GuessEnvironment, "_start", fail)
    assert attempts(rows, tmp_path / "failed.jsonl") == 0
    written = (tmp_path / "refused.jsonl").read_text(), (tmp_path / "failed.jsonl").read_text()
    assert "wrong key: ***" in written[0] and "cannot log in with ***" in written[1]
    assert "canary" not in "".join((*written, *capsys.readouterr()))


def test_a_deeply_nested_answer_is_one_line(
    rows: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint = ChatEndpoint(lambda _: "")
    endpoint.failures = [Response(DEEP, media_type="application/json")] * 99
    endpoint.server.start()
    assert attempts(rows, tmp_path / "attempts.jsonl", endpoint.url) == 2
    endpoint.server.stop()
    error = capsys.readouterr().err
    assert error.startswith("comprl env: --endpoint") and "recursion" in error and error.count("\n") == 1
