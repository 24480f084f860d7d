"""The file of waiting requests against a plain dictionary, whatever is added, removed, compacted or killed."""

import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_comprl.extractor import request_log
from verl_comprl.extractor.request_log import RequestLog

KEYS = st.sampled_from(["a", "b", "c\n", "\ud800"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.text()),
        st.tuples(st.just("remove"), KEYS),
        st.tuples(st.just("kill")),
        st.tuples(st.just("tear"), st.integers(1, 30)),
    )
)


@pytest.mark.parametrize("compact_bytes", [40, 2**30])
@given(steps=STEPS)
def test_it_holds_what_a_dictionary_would(
    tmp_path_factory: pytest.TempPathFactory, compact_bytes: int, steps: list[tuple]
) -> None:
    path = tmp_path_factory.mktemp("log") / "folder/log.jsonl"
    log, expected = RequestLog(path), dict[str, str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_log, "_COMPACT_BYTES", compact_bytes)
        for step in steps:
            match step:
                case ("put", key, text):
                    log.put(key, text)
                    expected[key] = text  # in the place of an earlier one
                case ("remove", key):
                    log.remove(key)
                    expected.pop(key, None)
                case ("kill",):
                    log = RequestLog(path)
                    assert list(log.recover().items()) == list(expected.items())
                case ("tear", length):
                    log = RequestLog(path)
                    if path.exists():
                        torn = b'{"key": "torn", "text": "never finished"}'[:length]
                        path.write_bytes(path.read_bytes() + torn)
                    assert log.recover() == expected
            assert {key for key in ("a", "b", "c\n", "\ud800", "torn") if key in log} == expected.keys()
            assert {key: log.read(key) for key in expected} == expected


def test_it_stays_small_however_much_has_passed_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "_COMPACT_BYTES", 1000)
    log = RequestLog(tmp_path / "log.jsonl")
    log.put("kept", "k" * 500)
    largest = 0
    for number in range(500):
        log.put(str(number), "x" * 100)
        log.remove(str(number))
        largest = max(largest, (tmp_path / "log.jsonl").stat().st_size)
    assert largest < 2500 and log.read("kept") == "k" * 500
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


def test_a_text_in_the_place_of_another_does_not_let_it_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "_COMPACT_BYTES", 1000)
    log = RequestLog(tmp_path / "log.jsonl")
    for number in range(500):
        log.put("kept", "k" * 100)
        log.put(str(number), "x" * 100)
        log.remove(str(number))
        assert (tmp_path / "log.jsonl").stat().st_size < 2500
    assert RequestLog(tmp_path / "log.jsonl").recover() == {"kept": "k" * 100}


def test_a_text_that_cannot_be_written_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    log = RequestLog(tmp_path / "file/log.jsonl")
    with pytest.raises(OSError):
        log.put("a", "text")
    assert "a" not in log
    log.remove("a")


@pytest.mark.parametrize("room", [0, 5])
@pytest.mark.parametrize("next_write", ["put", "put the same", "remove"])
def test_a_removal_that_a_full_disk_refused_is_written_with_the_next(
    tmp_path: Path, room: int, next_write: str
) -> None:
    path = tmp_path / "log.jsonl"
    log = RequestLog(path)
    for key in ("a", "b", "c"):
        log.put(key, key)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, hard))
    try:
        for key in ("a", "b"):
            with pytest.raises(OSError):
                log.remove(key)
        with pytest.raises(OSError):
            log.put("d", "d")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "a" not in log and "d" not in log
    if next_write == "remove":
        log.remove("c")
        expected = {}
    else:
        key = "a" if next_write == "put the same" else "d"
        log.put(key, "later")
        expected = {"c": "c", key: "later"}
    killed = RequestLog(path)
    assert killed.recover() == expected and killed.damaged == 0
