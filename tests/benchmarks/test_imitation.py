"""The benchmark of imitation on some episodes of the recorded run: what it learns from, and that it learns."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from benchmarks import imitation
from env_adapters.vaults.world import code_of
from recipes.miniature.run import MODELS
from verl_comprl.record.reader import RunRecord

RUN = Path(__file__).parents[2] / "examples/run"


@pytest.fixture(scope="module")
def successes() -> list[dict[str, Any]]:
    """Guided successes of a step of training."""
    return list(imitation.successes(RunRecord(RUN), 17, "training"))


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Calls the benchmark, and returns what it prints."""
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)

    def run(*options: Any) -> str:
        monkeypatch.setattr("sys.argv", ["imitation", *map(str, options)])
        imitation.main()
        return capsys.readouterr().out

    return run


def test_an_example_has_no_experience_and_marks_the_moves_of_the_code(successes: list[dict[str, Any]]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "plain/actor")
    assert len(successes) == 24
    for episode in successes:
        made = imitation.example(episode, tokenizer)
        text = tokenizer.decode(made.ids)
        assert episode["guide"]["text"] in episode["input"] and episode["guide"]["text"] not in text
        assert "xperience" not in text and text.endswith(episode["output"]) and episode["goal"] in text
        world, family = episode["options"]["world"], episode["options"]["family"]
        _, kind, *_ = episode["goal"].removeprefix("Open ").split()
        right = [tokenizer.decode([id]).strip() for id, marked in zip(made.ids, made.right, strict=True) if marked]
        assert tuple(right) == code_of(world, family, kind, 3)
        written = tokenizer.decode([id for id, marked in zip(made.ids, made.written, strict=True) if marked])
        assert re.sub(r"<.*?>", " ", written).split() == [
            re.sub(r"<.*?>", "", turn["response"]) for turn in episode["turns"]
        ]


@pytest.mark.slow
def test_more_optimizer_steps_learn_more(
    successes: list[dict[str, Any]], call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imitation, "WINDOW", 3)
    (tmp_path / "episodes").mkdir()
    for step in range(1, 7):
        # Tested on what is trained on, so that it has to learn.
        kept = [
            episode | {"kind": kind, "step": step} for kind in ("training", "evaluation") for episode in successes[:4]
        ]
        with gzip.open(tmp_path / f"episodes/step_{step}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(episode) + "\n" for episode in kept)
    header, *lines = (line.split() for line in call(tmp_path, "--updates", 1, 4).splitlines())
    assert header == ["updates", "3", "6"]
    losses = {int(updates): [float(cell) for cell in cells] for updates, *cells in lines}
    assert losses.keys() == {1, 4} and all(late < early - 0.1 for early, late in losses.values())
    assert all(several < one - 0.1 for one, several in zip(losses[1], losses[4], strict=True))


def test_a_run_without_held_out_successes_is_refused(call: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call(RUN)
    assert f"{RUN} has no held-out success with experience in its last step" in capsys.readouterr().err
