"""Scripted answers: what the extractor's parsers read in them."""

import pytest

from recipes.tiny_models.answers import Operation, operations_answer, retain_others, text_answer, text_fields
from verl_comprl.experience.schema import Add, Discard, Experience, Merge, Retain
from verl_comprl.experience.updates.parsing import parse_answer, parse_distillation, parse_merge


@pytest.mark.parametrize("reason", ["", "There is one entry."])
def test_a_text_is_read_without_its_reason(reason: str) -> None:
    message = text_answer("Go left.", reason=reason)
    assert message["role"] == "assistant" and message["content"].startswith(reason)
    assert parse_answer(message["content"]) == "Go left."


@pytest.mark.parametrize("reason", ["", "This is worth remembering."])
def test_operations_are_read_as_they_were_given(reason: str) -> None:
    entry = Experience(id="", title='A "title"', content="Two words, one\nline break.")
    message = operations_answer([{"operation": "add", **text_fields(entry)}], reason=reason)
    parsed = parse_distillation(message["content"], max_operations=1, listed=0)
    assert parsed.operations == (Add(title=entry.title, content=entry.content),) and not parsed.errors


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([], (Retain(ids=(1, 2, 3)),)),
        ([{"operation": "discard", "ids": [2]}], (Discard(ids=(2,)), Retain(ids=(1, 3)))),
        (
            [{"operation": "merge", "ids": [2, 3], "title": "a", "content": "b"}, {"operation": "discard", "ids": [1]}],
            (Merge(ids=(2, 3), title="a", content="b"), Discard(ids=(1,))),
        ),
    ],
)
def test_entries_that_no_operation_names_are_retained(operations: list[Operation], expected: tuple) -> None:
    given = list(operations)
    message = operations_answer(retain_others(operations, 3))
    parsed = parse_merge(message["content"], listed=3)
    assert tuple(parsed.operations) == expected and not parsed.errors
    assert operations == given
