"""Measuring how well a model knows the formats: what counts, and that what is remembered changes nothing."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign import make_tokenizer
from omegaconf import OmegaConf
from transformers import LlamaConfig, LlamaForCausalLM

from recipes.smollm2.measure import Writer, main, measure, play

CALL = '<think>Hm.</think>\n<tool_call>\n{"name": "search_and_ask", "arguments": {"query": "How?"}}\n</tool_call>'
ACTION = "<think>I try this.</think>\n<action>up</action>"


class ScriptedWriter:
    """Writes the given turns again and again, and keeps what it read."""

    def __init__(self, *turns: str) -> None:
        self.tokenizer, self.turns, self.read = make_tokenizer(), turns, []

    def begin(self) -> None:
        self.read = []

    def write(self, ids: list[int], *, max_tokens: int, top_p: float) -> list[int]:
        self.read.append(list(ids))
        written = self.tokenizer.encode(self.turns[(len(self.read) - 1) % len(self.turns)])
        return [*written, self.tokenizer.eos_token_id][:max_tokens]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    tokenizer = make_tokenizer(pad="<|im_end|>")
    tokenizer.save_pretrained(tmp_path)
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), num_hidden_layers=2, eos_token_id=2, pad_token_id=2, **sizes)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("turns", "lesson", "expected"),
    [
        ((ACTION,), None, {"action": 8}),
        ((ACTION,), "Title\nContent.", {"action": 8}),
        ((CALL, ACTION), "Title\nContent.", {"question": 1, "action": 4, "malformed": 4}),  # one question per episode
        ((CALL,), None, {"malformed": 8}),
        (("I go up.",), None, {"malformed": 8}),
        (("<action>north</action>",), None, {"malformed": 8}),
    ],
)
def test_turns_are_counted_as_a_run_takes_them(turns: tuple[str, ...], lesson: str | None, expected: dict) -> None:
    writer = ScriptedWriter(*turns)
    counts = play(writer, 1, lesson, max_turn_tokens=256)  # pyright: ignore[reportArgumentType]
    assert {kind: count for kind, count in counts.items() if count} == expected
    for before, after in zip(writer.read, writer.read[1:], strict=False):
        assert after[: len(before)] == before
    assert ("search_and_ask" in writer.tokenizer.decode(writer.read[0])) == bool(lesson)


def test_a_turn_that_is_cut_off_gets_its_end_token() -> None:
    writer = ScriptedWriter("I think about it for a long time.")
    play(writer, 1, None, max_turn_tokens=10)  # pyright: ignore[reportArgumentType]
    assert "I think ab<|im_end|>\n<|im_start|>user\nObservation:" in writer.tokenizer.decode(writer.read[1])


def test_what_a_writer_has_read_before_changes_nothing(model: Path) -> None:
    writer = Writer(model)
    first = list(range(4, 60))
    read = first + writer.write(first, max_tokens=5, top_p=1.0) + [9, 8, 7]
    torch.manual_seed(1)
    continued = writer.write(read, max_tokens=5, top_p=0.95)
    writer.begin()
    torch.manual_seed(1)
    assert continued == writer.write(read, max_tokens=5, top_p=0.95) and 1 <= len(continued) <= 5


def test_a_model_that_knows_nothing_is_measured_to_the_end(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = OmegaConf.load(Path(__file__).parents[2] / "recipes/smollm2/cpu.yaml")
    config.extractor.rollout.prompt_length = 10_000  # a token is a byte
    monkeypatch.setattr(OmegaConf, "load", lambda _: config)
    measure(model, turns=9, calls=4)
    *_, actor, extractor, seconds = capsys.readouterr().out.splitlines()
    assert actor.startswith("actor: 0 of 16 turns well-formed")
    assert extractor.startswith("extractor: 0 of 4 answers well-formed") and seconds.endswith("CPU seconds")


def test_a_folder_without_a_model_is_answered_with_the_command_that_makes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["measure", "--model", str(tmp_path)])
    with pytest.raises(SystemExit) as caught:
        main()
    command = f"python -m recipes.smollm2.prepare --output {tmp_path}"
    assert caught.value.code == f"error: there is no {tmp_path}/config.json; make the model with {command}"
