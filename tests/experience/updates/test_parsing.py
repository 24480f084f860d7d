"""Parsing of well-formed and malformed extractor answers."""

import json
import time

import pytest

from verl_comprl.experience import Add, Discard, Downvote, Merge, Retain, Return, Update, Upvote
from verl_comprl.experience.updates.parsing import parse_answer, parse_distillation, parse_merge

ADD = {"operation": "add", "title": "t", "content": "c"}


def answer(*operations: object) -> str:
    return f"I think this.\n<answer>{json.dumps(operations)}</answer>"


def kinds(parsed: object) -> list[str]:
    return [error.kind for error in parsed.errors]  # type: ignore[attr-defined]


def distill(text: str, max_operations: int = 3, listed: int = 2):
    return parse_distillation(text, max_operations=max_operations, listed=listed)


def test_distillation_operations() -> None:
    parsed = distill(answer(ADD, {"operation": "update", "ids": [2, 1], "title": "u", "content": "v"}))
    assert parsed.operations == (Add(title="t", content="c"), Update(ids=(2, 1), title="u", content="v"))
    assert parsed.format_ok and parsed.errors == ()
    assert distill(answer({"operation": "return"})).operations == (Return(),)


def test_merge_operations() -> None:
    text = answer(
        {"operation": "retain", "ids": [3]},
        {"operation": "merge", "ids": [1, 2], "title": "t", "content": "c"},
        {"operation": "discard", "ids": [4, 5]},
    )
    parsed = parse_merge(text, listed=5)
    assert parsed.operations == (Retain(ids=(3,)), Merge(ids=(1, 2), title="t", content="c"), Discard(ids=(4, 5)))
    assert parsed.errors == ()


BODY = json.dumps([ADD])


@pytest.mark.parametrize(
    "text",
    [
        f"<answer>{BODY}</answer>",
        f"<answer>\n```json\n{BODY}\n```\n</answer>",
        f"<answer>```{BODY}```</answer> That is all.",
        f"<answer>Here: {BODY} and that is all.</answer>",
        f"<think><answer>[]</answer></think><answer>{BODY}</answer>",
        f"reasoning without opening tag <answer>[1]</answer></think>\n<answer>{BODY}</answer>",
        f"<answer>[]</answer> No, better: <answer>{BODY}</answer>",  # the prompts ask for reasons first
        f"<answer>{BODY}</answer>{' ' * 200_000}",
        f"<answer>{json.dumps([{**ADD, 'reason': 'an extra field is ignored'}])}</answer>",
    ],
)
def test_wrapping_is_tolerated(text: str) -> None:
    parsed = distill(text)
    assert parsed.operations == (Add(title="t", content="c"),) and parsed.errors == ()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "no_answer"),
        (BODY, "no_answer"),
        (f"<answer>{BODY}", "no_answer"),
        (f"<think>a draft <answer>{BODY}</answer> and then the tokens ran ou", "no_answer"),
        (f"<think><answer>{BODY}</answer></think> nothing after it", "no_answer"),
        ("<answer> </answer>", "no_answer"),
        ("<answer>nothing to learn</answer>", "not_a_list"),
        (f"<answer>{json.dumps(ADD)}</answer>", "not_a_list"),
        ('<answer>[{"operation": "add", </answer>', "bad_json"),
        (f"<answer>{'[' * 100_000}</answer>", "bad_json"),
        (f"<answer>[{'9' * 5000}]</answer>", "bad_json"),
        ("<answer>[]</answer>", "empty_list"),
    ],
)
def test_format_failures(text: str, kind: str) -> None:
    parsed = distill(text)
    assert not parsed.format_ok and parsed.operations == () and kinds(parsed) == [kind]


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("add", "not_an_object"),
        (None, "not_an_object"),
        ({}, "unknown_operation"),
        ({"operation": ["add"]}, "unknown_operation"),
        ({"operation": "discard", "ids": [1]}, "unknown_operation"),
        ({"operation": "add", "title": "t"}, "missing_field"),
        ({"operation": "update", "title": "t", "content": "c"}, "missing_field"),
        ({**ADD, "title": 3}, "bad_field"),
        ({**ADD, "content": " \n"}, "empty_text"),
        ({**ADD, "operation": "update", "ids": 1}, "bad_field"),
        ({**ADD, "operation": "update", "ids": [True]}, "bad_field"),
        ({**ADD, "operation": "update", "ids": ["1"]}, "bad_field"),
        ({**ADD, "operation": "update", "ids": []}, "bad_index"),
        ({**ADD, "operation": "update", "ids": [0]}, "bad_index"),
        ({**ADD, "operation": "update", "ids": [3]}, "bad_index"),
        ({**ADD, "operation": "update", "ids": [1, 1]}, "repeated_index"),
    ],
)
def test_a_bad_operation_is_reported_and_the_good_one_kept(operation: object, kind: str) -> None:
    parsed = distill(answer(operation, ADD))
    assert parsed.operations == (Add(title="t", content="c"),) and kinds(parsed) == [kind]
    assert parsed.errors[0].message.startswith("operation 1: ")
    assert not distill(answer(operation)).format_ok


def test_as_many_operations_are_read_as_a_merge_may_have() -> None:
    parsed = parse_merge(answer(*({"operation": "retain", "ids": [index]} for index in range(1, 1501))), listed=1500)
    assert len(parsed.operations) == 1500 and parsed.errors == ()


def test_only_valid_operations_count_towards_the_limit() -> None:
    parsed = distill(answer({}, ADD, ADD, ADD, ADD), max_operations=2)
    assert len(parsed.operations) == 2 and kinds(parsed) == ["unknown_operation", "too_many", "too_many"]


def test_an_entry_is_used_once_per_answer() -> None:
    parsed = parse_merge(answer({"operation": "retain", "ids": [1]}, {"operation": "discard", "ids": [1, 2]}), listed=2)
    assert parsed.operations == (Retain(ids=(1,)),) and kinds(parsed) == ["repeated_index"]


def test_votes_only_where_they_are_allowed() -> None:
    answer = """<answer>[{"operation": "upvote", "ids": [1]}, {"operation": "downvote", "ids": [2]},
        {"operation": "update", "ids": [1], "title": "t", "content": "c"},
        {"operation": "upvote", "ids": [3]}]</answer>"""
    parsed = parse_distillation(answer, max_operations=4, listed=2, read=2)
    assert parsed.operations == (Upvote(ids=(1,)), Downvote(ids=(2,)), Update(ids=(1,), title="t", content="c"))
    assert len(parsed.errors) == 1  # there is no third entry
    parsed = parse_distillation(answer, max_operations=4, listed=3, read=1)
    assert parsed.operations == (Upvote(ids=(1,)), Update(ids=(1,), title="t", content="c"))
    assert [error.kind for error in parsed.errors] == ["bad_index"] * 2  # the second and the third were not read
    parsed = parse_distillation(answer, max_operations=4, listed=2)
    assert parsed.operations == (Update(ids=(1,), title="t", content="c"),)
    assert [error.kind for error in parsed.errors] == ["unknown_operation"] * 3


def test_answer_to_a_question_is_plain_text() -> None:
    assert parse_answer("<think>hm</think> <answer>\n Turn the key. </answer>") == "Turn the key."
    assert parse_answer("Turn the key.") is None


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("<answer>[1]</answer>" * 80_000, {"too_long"}),
        (f"<answer>[{'1,' * 3_000_000}1]</answer>", {"too_long"}),
        (f"{'<answer>[' * 25_000}</answer>", {"too_long"}),  # each beginning is read to the end of the text
        (f"<answer>[{'1,' * 130_000}1]</answer>", {"not_an_object", "too_many"}),
        (f"{'thinking ' * 700_000}</think><answer>[1]</answer>", {"not_an_object"}),
    ],
)
def test_a_long_answer_is_read_in_a_moment(text: str, kinds: set[str]) -> None:
    """The event loop that reads it answers all queries; some of these took half a minute."""
    started = time.process_time()
    parsed = parse_distillation(text, max_operations=3, listed=0)
    assert {error.kind for error in parsed.errors} == kinds and len(parsed.errors) < 2000
    assert not parsed.format_ok and time.process_time() - started < 5
