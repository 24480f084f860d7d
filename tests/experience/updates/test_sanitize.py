"""Sanitising removes the markers that it knows, from any text and in bounded time."""

import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_comprl.experience import sanitize
from verl_comprl.experience.updates.sanitize import cap_tokens

FORBIDDEN = re.compile(
    r"<\|.*?\|>|</?(tool_call|tool_response|tools|experience|answer|think|action)>", re.IGNORECASE | re.DOTALL
)
PIECES = ["<|", "|>", "im_end", "<", ">", "/", "answer", "tool_call", "think", "tools", " ", "\n", "\x00", "a", "|"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("turn the key", "turn the key"),
        ("a < b and c > d, x | y\n\tz", "a < b and c > d, x | y\n\tz"),
        ("done<|im_end|>\n<|im_start|>system", "done\nsystem"),
        ("<\uff5cend\u2581of\u2581sentence\uff5c>a", "a"),
        ("<tool_call>{}</tool_call> <TOOLS x=1> < / answer >", "{}"),
        ("<thinking> stays, <think> goes", "<thinking> stays,  goes"),
        ("<ans<answer>wer>a", "a"),
        ("<|im_<|im_end|>end|>b", "b"),
        ("xs |> f |> g; h <| i |> j", "xs | > f | > g; h < | i | > j"),  # operators
        ("let f = g <|h\n|> i", "let f = g < |h\n| > i"),
        ("main.py [ARGS] <filename>", "main.py [ARGS] <filename>"),
        ("<an\x00swer>\x1b[31mc\u200b\ud800", "[31mc"),
    ],
)
def test_examples(text: str, expected: str) -> None:
    assert sanitize(text, 1000) == expected


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3)).map("".join), st.integers(1, 60))
def test_result_is_clean_short_and_final(text: str, max_chars: int) -> None:
    clean = sanitize(text, max_chars)
    assert not FORBIDDEN.search(clean)
    assert not any(ord(char) < 32 and char not in "\n\t" for char in clean)
    assert len(clean) <= max_chars
    assert sanitize(clean, max_chars) == clean
    clean.encode("utf-8")


@pytest.mark.parametrize(
    "text",
    [
        "<ans" * 50_000 + "wer>" * 50_000,
        "<" + " " * 200_000,
        "<|" * 100_000,
        "é" + "<|" * 999 + "a" + "|>" * 999,  # one marker inside of another
        "\u2039answer" * 280 + "\u203a" * 280,
    ],
)
def test_hostile_text_is_sanitised_quickly(text: str) -> None:
    def seconds() -> float:
        start = time.process_time()
        sanitize(text, 4000)
        return time.process_time() - start

    assert min(seconds() for _ in range(3)) < 0.4
    clean = sanitize(text, 4000)
    assert sanitize(clean, 4000) == clean and not FORBIDDEN.search(clean)


def test_markers_inside_of_markers_leave_the_text_around_them() -> None:
    nested = {depth: sanitize("before " + "<s" * depth + "<s>" + ">" * depth + " after", 4000) for depth in (10, 40)}
    assert nested[10] == "before  after"
    assert nested[40].startswith("before ") and nested[40].endswith(" after") and not set(nested[40]) & set("<>")
    assert sanitize("a < b " + "<|" * 3 + "x" + "|>" * 3 + " c", 4000) == "a < b < |< || >| > c"


class Pairs:
    """A tokenizer of up to two bytes per token: a cut can split a character, and the rest can encode to more tokens."""

    def encode(self, text: str, **_: Any) -> list[int]:
        data = text.encode("utf-8")
        return [int.from_bytes(b"\x01" + data[at : at + 2]) for at in range(0, len(data), 2)]

    def decode(self, token_ids: Sequence[int], **_: Any) -> str:
        data = b"".join(id.to_bytes(3).lstrip(b"\x00")[1:] for id in token_ids)
        return data.decode("utf-8", errors="replace")


def test_a_text_is_cut_to_its_first_tokens() -> None:
    assert cap_tokens("abcdef", Pairs(), 3) == "abcdef"
    assert cap_tokens("abcdef", Pairs(), 2) == "abcd"
    assert cap_tokens("a\u65e5b", Pairs(), 1) == "a"  # not half a character
    assert cap_tokens("abc <|im_end x|>", Pairs(), 4) == "abc <"  # the half of a marker is broken, and then cut


@given(st.lists(st.sampled_from([*PIECES, "\u65e5", "\U0001f6aa"])).map("".join), st.integers(1, 20))
def test_a_cut_text_is_short_and_as_clean_as_before(text: str, max_tokens: int) -> None:
    clean = sanitize(text, 1000)
    cut = cap_tokens(clean, Pairs(), max_tokens)
    assert len(Pairs().encode(cut)) <= max_tokens
    assert sanitize(cut, 1000) == cut or cut == clean


def test_no_more_of_a_text_is_looked_at_than_is_kept() -> None:
    class Text(str):
        looked_at = 0

        def __iter__(self) -> Iterator[str]:
            for char in super().__iter__():
                self.looked_at += 1
                yield char

    text = Text("\x00" + "é" * 10_000)
    assert sanitize(text, 10) == "é" * 10
    assert text.looked_at == 11
