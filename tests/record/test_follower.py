"""Following a file while another process writes it, is killed, or replaces it."""

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from verl_comprl.record.follower import LineFollower
from verl_comprl.trainer.run_folder.log import append_record, rewind_log


@given(cuts=st.lists(st.integers(0, 200), max_size=6))
def test_records_are_the_same_however_the_file_grows(cuts: list[int], tmp_path_factory) -> None:
    file = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    records = [{"step": step, "text": "ü" * step} for step in range(8)]
    content = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()
    follower = LineFollower(file)
    written = 0
    for end in [*sorted(min(cut, len(content)) for cut in cuts), len(content)]:
        with file.open("ab") as stream:
            stream.write(content[written:end])
        written = end
        follower.poll()
        assert follower.records == records[: content[:end].count(b"\n")]
    assert follower.records == records


def test_a_missing_file_is_waited_for_and_a_broken_line_left_out(tmp_path: Path) -> None:
    follower = LineFollower(tmp_path / "metrics.jsonl", lambda record: {"step": record["step"]})
    follower.poll()
    assert follower.records == []
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "data": {}}\n{"step": 2, "da{"step": 3}\n[4]\n{"step": 5}\n')
    follower.poll()
    assert follower.records == [{"step": 1}, {"step": 5}]


def test_a_resumed_run_replaces_what_it_repeats(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    for step in range(5):
        append_record(file, {"step": step, "data": {"first": True}})
    follower = LineFollower(file)
    follower.poll()
    rewind_log(file, 2)
    for step in (3, 4, 5):
        append_record(file, {"step": step, "data": {"first": False}})
    follower.poll()
    assert [(record["step"], record["data"]["first"]) for record in follower.records] == [
        (0, True), (1, True), (2, True), (3, False), (4, False), (5, False),
    ]  # fmt: skip


def test_a_shorter_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n{"step": 2}\n')
    follower = LineFollower(file)
    follower.poll()
    file.write_text('{"step": 7}\n')
    follower.poll()
    assert follower.records == [{"step": 7}]
