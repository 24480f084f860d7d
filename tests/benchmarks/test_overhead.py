"""Order of the arms, room for long episodes, and what continues an earlier measurement; nothing is trained."""

import json
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from benchmarks.overhead import LENGTHS, lengths, main, order
from benchmarks.overhead_table import GENERATED

MEASURED = {"arm": "baseline", "round": 0, "step": 0, "metrics": {GENERATED.format("free"): 64.0}}


def test_every_second_round_runs_backwards() -> None:
    arms = ["baseline", "recorded", "idle"]
    assert [order(number, arms) for number in range(3)] == [arms, ["idle", "recorded", "baseline"], arms]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--arms", "baseline", "idle"], "has rounds of baseline; other --arms need another --output"),
        (
            ["--arms", "baseline", "--turns", "64"],
            "has episodes of 64.0 tokens; other --turns need another --output",
        ),
    ],
)
def test_other_work_does_not_continue_what_was_measured(
    options: list[str],
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "overhead.jsonl").write_text(json.dumps(MEASURED) + "\n")
    monkeypatch.setattr(sys, "argv", ["overhead", "--output", str(tmp_path), *options])
    with pytest.raises(SystemExit):
        main()
    assert error in capsys.readouterr().err


def test_episodes_of_more_turns_get_as_much_more_room() -> None:
    """Of 26 tokens a turn, as in the miniature: eight of the actor, the rest around them and of the environment."""
    settings = OmegaConf.from_dotlist(lengths(64))
    assert [OmegaConf.select(settings, key) for key in LENGTHS] == [64 * 26, 304 + 56 * 26]
    assert [OmegaConf.select(OmegaConf.from_dotlist(lengths(8)), key) for key in LENGTHS] == [208, 304]
