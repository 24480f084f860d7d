"""Parses an extractor's answer into operations: tolerant of the text around them, strict about their content.

Owns parsing. The effect of an operation is decided in ``planning``, texts are made safe to store in ``sanitize``.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from verl_comprl.experience.schema import Add, Discard, Downvote, Merge, Retain, Return, Update, Upvote

Operation = Add | Update | Return | Upvote | Downvote | Retain | Merge | Discard

_DISTILLATION: Mapping[str, type[Operation]] = {"add": Add, "update": Update, "return": Return}
_VOTES: Mapping[str, type[Operation]] = {"upvote": Upvote, "downvote": Downvote}
_ANSWER_LIST = re.compile(r"<answer>\s*(?:```(?:json)?\s*)?\[")
_MERGE: Mapping[str, type[Operation]] = {"retain": Retain, "merge": Merge, "discard": Discard}

# Whoever parses may be an event loop on which rollouts wait, and the answer a degenerate model's or an endpoint's.
_MAX_CHARS = 65_536 * 4
"""Characters of an answer after its reasoning; a response of the paper's whole context has about as many."""
_MAX_LISTS = 100
"""Beginnings of an ``<answer>`` with a list: each that is no JSON costs time in proportion to all the text."""
_MAX_ITEMS = 1000
"""Items of the list: the errors of more would only be counted."""


class ParseError(NamedTuple):
    """One error in an answer.

    ``kind`` is one of: too_long, no_answer, bad_json, not_a_list, empty_list (the whole answer is unusable);
    not_an_object, unknown_operation, missing_field, bad_field, empty_text, bad_index, repeated_index, too_many (one
    operation is).
    """

    kind: str
    message: str


@dataclass(frozen=True)
class ParsedAnswer:
    """The valid operations of an answer, and the errors of the others."""

    operations: tuple[Operation, ...]
    errors: tuple[ParseError, ...]

    @property
    def format_ok(self) -> bool:
        """Whether at least one operation could be read; False is a format failure."""
        return bool(self.operations)


def cleaned(operation: Operation, clean: Callable[[str, str], tuple[str, str]]) -> Operation:
    """Return ``operation`` with its title and content replaced by ``clean(title, content)``, if it has them."""
    if not isinstance(operation, Add | Update | Merge):
        return operation
    title, content = clean(operation.title, operation.content)
    return operation.model_copy(update={"title": title, "content": content})


def parse_answer(answer: str) -> str | None:
    """Return the text of the last ``<answer>...</answer>`` after the reasoning, or None if there is none.

    The last on purpose, as in ``parse_distillation``: the prompts ask for reasons first, in which models draft
    answers and then write a better one. What comes after the answer is the model's own text as well, so that taking
    the first would keep nobody out.
    """
    _, thought, reply = answer.rpartition("</think>")
    if not thought and "<think>" in reply:
        return None  # cut off while still reasoning: an <answer> in there is a draft
    _, opened, rest = reply.rpartition("<answer>")
    body, closed, _ = rest.partition("</answer>")
    return body.strip() or None if opened and closed else None


def parse_distillation(answer: str, *, max_operations: int, listed: int, read: int | None = None) -> ParsedAnswer:
    """Parse the answer to a distillation request: add, update, return, and votes on the entries that were read.

    Args:
        answer: The extractor's whole answer; of several lists in it the last counts, see ``parse_answer``.
        max_operations: Valid operations beyond this number are reported and dropped.
        listed: Number of entries listed in the prompt; valid indices are 1 to this number.
        read: Number of listed entries, from the first, that the episode read. They can be voted on, and updated by the
            same answer; such a vote does not count for the new text. None where the extractor has no votes.
    """
    allowed = _DISTILLATION if read is None else {**_DISTILLATION, **_VOTES}
    return _parse(answer, allowed, max_operations=max_operations, listed=listed, read=read or 0)


def parse_merge(answer: str, *, listed: int) -> ParsedAnswer:
    """Parse the answer to a merge request on a chunk of ``listed`` entries: retain, merge, discard."""
    return _parse(answer, _MERGE, max_operations=listed, listed=listed)


def _parse(
    answer: str, allowed: Mapping[str, type[Operation]], *, max_operations: int, listed: int, read: int = 0
) -> ParsedAnswer:
    items = _read_list(answer)
    if isinstance(items, ParseError):
        return ParsedAnswer((), (items,))
    operations: list[Operation] = []
    errors: list[ParseError] = []
    claimed: set[int] = set()
    looked_at = max(_MAX_ITEMS, max_operations)
    for number, item in enumerate(items[:looked_at], start=1):
        result = _read_operation(item, allowed, listed, read, claimed)
        if not isinstance(result, ParseError) and len(operations) == max_operations:
            result = ParseError("too_many", f"more than {max_operations} operations")
        if isinstance(result, ParseError):
            errors.append(result._replace(message=f"operation {number}: {result.message}"))
            continue
        operations.append(result)
        if not isinstance(result, Upvote | Downvote):
            claimed.update(getattr(result, "ids", ()))
    if len(items) > looked_at:
        errors.append(ParseError("too_many", f"{len(items) - looked_at} further operations"))
    return ParsedAnswer(tuple(operations), tuple(errors))


def _read_list(answer: str) -> list[Any] | ParseError:
    reply = answer.rpartition("</think>")[2]
    if len(reply) > _MAX_CHARS or len(_ANSWER_LIST.findall(reply)) > _MAX_LISTS:
        return ParseError("too_long", f"over {_MAX_CHARS} characters or {_MAX_LISTS} lists after the reasoning")
    body = parse_answer(answer)
    if body is None:
        return ParseError("no_answer", "no text inside <answer> and </answer> after the reasoning")
    lists = _top_level_lists(reply)
    if lists:
        return lists[-1] or ParseError("empty_list", "the list is empty")
    start = re.search(r"[\[{]", body)
    if start is None:
        return ParseError("not_a_list", f"expected a JSON list, got {body[:40]!r}")
    try:
        value, _ = json.JSONDecoder().raw_decode(body, start.start())
    except (ValueError, RecursionError) as error:
        return ParseError("bad_json", f"not valid JSON: {error}")
    if not isinstance(value, list):
        return ParseError("not_a_list", f"expected a JSON list, got a {type(value).__name__}")
    return value or ParseError("empty_list", "the list is empty")


def _top_level_lists(reply: str) -> list[list[Any]]:
    """Return the JSON lists that begin an ``<answer>``, without those quoted inside of another."""
    found, at = [], 0
    last = reply.rfind("</answer>")
    while match := _ANSWER_LIST.search(reply, at):
        at = match.end()
        try:
            value, end = json.JSONDecoder().raw_decode(reply, match.end() - 1)
        except (ValueError, RecursionError):
            continue
        if end <= last:
            found.append(value)
            at = end
    return found


def _read_operation(
    item: Any, allowed: Mapping[str, type[Operation]], listed: int, read: int, claimed: set[int]
) -> Operation | ParseError:
    if not isinstance(item, dict):
        return ParseError("not_an_object", f"expected a JSON object, got {str(item)[:40]!r}")
    name = item.get("operation")
    model = allowed.get(name) if isinstance(name, str) else None
    if model is None:
        return ParseError("unknown_operation", f"{str(name)[:40]!r} is none of {', '.join(allowed)}")
    fields = [field for field in model.model_fields if field != "operation"]
    for field in fields:
        if field not in item:
            return ParseError("missing_field", f"{name} needs {field!r}")
        known, taken = (read, set()) if name in _VOTES else (listed, claimed)
        error = _check_ids(item["ids"], known, taken) if field == "ids" else _check_text(field, item[field])
        if error is not None:
            return error
    # Unknown fields are dropped, not refused: models add some of their own, such as a reason.
    return model.model_validate({field: item[field] for field in fields})


def _check_text(field: str, value: Any) -> ParseError | None:
    if not isinstance(value, str):
        return ParseError("bad_field", f"{field!r} must be a string, got {str(value)[:40]!r}")
    return None if value.strip() else ParseError("empty_text", f"{field!r} is empty")


def _check_ids(value: Any, listed: int, claimed: set[int]) -> ParseError | None:
    # The exact type: JSON's true is a bool, which Python takes for an int.
    if not isinstance(value, list) or not all(type(index) is int for index in value):
        return ParseError("bad_field", f"'ids' must be a list of integers, got {str(value)[:40]!r}")
    if not value or any(not 1 <= index <= listed for index in value):
        return ParseError("bad_index", f"'ids' must name some of the {listed} listed entries, got {str(value)[:40]}")
    if len(set(value)) < len(value) or claimed.intersection(value):
        return ParseError("repeated_index", f"an entry of {str(value)[:40]} is already used by this answer")
    return None
