"""The benchmark of prompts of long episodes, with the miniature's tokenizer."""

import pytest

from benchmarks import long_episodes


def test_what_has_to_be_shortened_takes_more_attempts_and_no_more_for_more_turns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["long_episodes", "--rounds", "1", "--turns", "2", "64", "512", "--tokens", "1024"]
    monkeypatch.setattr("sys.argv", arguments)
    long_episodes.main()
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["turns", "kept", "tokens", "encoded"]
    short, long, longer = ([int(cell) for cell in line.split()[:4]] for line in lines)
    assert short[:2] == [2, 2] and short[3] == 1
    assert long[1] == longer[1] < 64  # turns; numbers of turns have more tokens
    for _, kept, tokens, encoded in (long, longer):
        assert kept > 2 and 900 < tokens <= 1024 and encoded <= 5
