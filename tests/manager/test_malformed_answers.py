"""A thousand answers of each kind, most of them malformed: the bank changes by what is valid alone."""

import json
import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from managed import WHERE, Extractor, MakeRequest, Open, merged

from verl_comprl.manager.messages import MAX_CHARS, NOTHING_FOUND, EpisodeReport

ANSWERS = 1000
MARKS = ("<|im_end|>", "<|im_start|>", "<tool_call>", "[INST]", "\x00", "\x1b")
CONTROL = f"{' '.join(MARKS)} \u202e \ud800"


def addition(number: int) -> dict[str, Any]:
    return {"operation": "add", "title": f"lesson {number}", "content": f"what number {number} says"}


def wrap(value: Any) -> str:
    return f"<answer>{json.dumps(value)}</answer>"


def deep(number: int) -> str:
    return "<answer>" + "[" * 5000 + str(number) + "]" * 5000 + "</answer>"


def cut(random: random.Random, number: int) -> str:
    text = wrap([addition(number)])
    return text[: random.randrange(len(text) - len("</answer>") - 1)]


def wrong_field(random: random.Random, number: int) -> str:
    """An operation with a field that is missing, or of a type or value that is none of its own."""
    operation = addition(number)
    field = random.choice(["operation", "title", "content"])
    if random.random() < 0.3:
        del operation[field]
    else:
        operation[field] = random.choice([None, 3, -math.inf, math.nan, True, [], {}, ["add"], {"add": 1}, "", " \n"])
    return wrap([operation])


def wrong_ids(random: random.Random, number: int) -> str:
    """An update of entries that are not listed, or of none."""
    ids = random.choice([[], [0], [-1], [99], [1.5], ["1"], [None], "1", 1, {}, [1, 1], [10**30], [[1]], [True], None])
    return wrap([addition(number) | {"operation": "update", "ids": ids}])


BROKEN: list[Callable[[random.Random, int], str]] = [
    lambda random, number: "",
    lambda random, number: f"I would rather not say anything about {number}.",
    lambda random, number: "<answer></answer>" * random.randrange(1, 50),
    lambda random, number: json.dumps([addition(number)]),
    lambda random, number: f"<think>{wrap([addition(number)])}",
    lambda random, number: wrap(addition(number)),
    lambda random, number: wrap(random.choice([None, 3, "add", [], {}, [[]], [None, 1, "x"], [[addition(number)]]])),
    lambda random, number: wrap([addition(number)]).replace('"', "'"),
    lambda random, number: wrap([addition(number)]).replace("}", ""),
    lambda random, number: wrap(
        [addition(number) | {"operation": random.choice(["delete", "ADD", "merge", "upvote"])}]
    ),
    lambda random, number: deep(number),
    lambda random, number: "<answer>[" * 10_000,
    lambda random, number: "".join(chr(random.randrange(1, 0x3000)) for _ in range(2000)),
    lambda random, number: "x" * 100_000,
    lambda random, number: CONTROL * 300,
    lambda random, number: wrap([random.choice([math.nan, math.inf, 1e400, 10**400]) for _ in range(9)]),
    lambda random, number: f"<answer>[{'9' * 5000}]</answer>",
    cut,
    wrong_field,
    wrong_ids,
]
"""Answers without a valid operation."""


def good(random: random.Random, number: int, most: int) -> tuple[str, dict[str, str]]:
    """Return an answer whose operations are partly valid, and what it adds, contents by title."""
    operations: list[Any] = [addition(number * 10 + index) for index in range(random.randrange(1, 5))]
    operations += [random.choice([None, [], "add", {"operation": "add"}, {"operation": "shout"}])] * random.randrange(3)
    random.shuffle(operations)
    valid = [operation for operation in operations if isinstance(operation, dict) and "title" in operation][:most]
    added = {operation["title"]: operation["content"] for operation in valid}
    valid[0]["content"] += " " + random.choice(["", CONTROL])
    return f"so {CONTROL} </think> then {wrap(operations)} {random.choice(['', wrap('no')])}", added


async def test_the_bank_changes_by_valid_operations_only(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest
) -> None:
    draw, most = random.Random(7), 3
    setup = await open_manager(
        bank={"capacity": 5000}, extractor_settings={"max_operations": most, "distillation_workers": 1}
    )
    setup.start()
    expected: dict[str, str] = {}
    for number in range(ANSWERS):
        answer, added = good(draw, number, most) if draw.random() < 0.2 else (draw.choice(BROKEN)(draw, number), {})
        extractor.replies["distill"] = answer
        await setup.manager.report(EpisodeReport(make_request(f"e{number}"), guided=False))
        assert await setup.manager.drain(20)
        expected |= added
        found = {entry.title: entry.content for entry in setup.bank.entries()}
        assert found.keys() == expected.keys(), answer[:300]
    assert all(found[title].startswith(content) for title, content in expected.items())
    assert not [text for text in found.values() if any(mark in text for mark in MARKS)]
    metrics = await setup.finished()
    assert metrics["bank/size"] == len(expected) and metrics["queue/dead"] == metrics["queue/retried"] == 0
    assert "distillations/return" not in metrics
    assert metrics["distillations/written"] + metrics["distillations/unreadable"] == ANSWERS
    assert len(setup.bank) == len(expected) and await setup.bank.verify() == []


def good_merge(random: random.Random, number: int, listed: list[str]) -> tuple[str, list[str], str]:
    """Return an answer whose operations are partly valid, the titles that it removes, and the one that it writes."""
    order = random.sample(range(1, len(listed) + 1), 3)
    title = f"merged {number}."
    content = f"both of {number} {random.choice(['', CONTROL])}"
    operations: list[Any] = [
        {"operation": "merge", "ids": order[:2], "title": title, "content": content},
        {"operation": "discard", "ids": order[2:]},
        {"operation": "discard", "ids": order[:1]},  # which is merged already
        random.choice(
            [addition(number), {"operation": "merge", "ids": [1, 99]}, None, {"operation": "discard"}, [], 3]
        ),
    ]
    answer = f"so {CONTROL} </think> then {wrap(operations)} {random.choice(['', wrap('no')])}"
    return answer, [listed[index - 1] for index in order], title


async def test_a_merge_changes_the_bank_by_valid_operations_only(open_manager: Open, extractor: Extractor) -> None:
    draw = random.Random(7)
    setup = await open_manager(extractor_settings={"distill": False})
    setup.start()
    expected, added, merges = set[str](), 0, 0
    for number in range(ANSWERS):
        while len(expected) < 5:
            added += 1
            await setup.seed(f"seed {added}.", call_id=f"seed {added}")
            expected.add(f"seed {added}.")
        valid = draw.random() < 0.2

        def reply(prompt: str, number: int = number, valid: bool = valid) -> str:
            nonlocal expected, merges
            if not valid:
                return draw.choice(BROKEN)(draw, number)
            answer, gone, title = good_merge(draw, number, sorted(expected, key=prompt.index))
            expected, merges = (expected - set(gone)) | {title}, merges + 1
            return answer

        before = {entry.title: entry for entry in setup.bank.entries()}
        extractor.replies["merge"] = reply
        assert await setup.manager.merge()
        await merged(setup, number + 1)
        after = {entry.title: entry for entry in setup.bank.entries()}
        assert after.keys() == expected
        assert all(after[title] == before[title] for title in expected & before.keys()), "what is left is as it was"
    metrics = await setup.manager.metrics()
    assert metrics["operations/merged"] == merges > 100
    assert not [name for name in metrics if name.startswith("failures/")]
    assert not [entry for entry in setup.bank.entries() if any(mark in entry.text for mark in MARKS)]
    assert await setup.bank.verify() == []


async def test_an_answer_to_a_question_changes_no_bank_and_reaches_the_actor_clean(
    open_manager: Open, extractor: Extractor
) -> None:
    """Anything between the tags is an answer, so that only what has none is malformed."""
    draw = random.Random(7)
    setup = await open_manager()
    setup.start()
    await setup.seed("open the door")
    before = [entry.text for entry in setup.bank.entries()]
    counts: Counter[str] = Counter()
    for number in range(ANSWERS):
        text = draw.choice(BROKEN)(draw, number)
        if draw.random() < 0.2:
            text = f"so </think> <answer>go {number} {draw.choice(['', CONTROL, 'y' * 100_000])}</answer>"
        extractor.replies["answer"] = text
        answer = await setup.manager.search_and_ask("open the door", *WHERE)
        counts[answer.status] += 1
        assert answer.status in ("answered", "malformed"), (answer, text[:300])
        assert len(answer.text) <= MAX_CHARS and not any(mark in answer.text for mark in MARKS)
        answer.text.encode()  # no lone surrogate
        assert (answer.record_id is None) == (answer.status == "malformed")
        if answer.status == "malformed":
            assert answer.text == NOTHING_FOUND
    metrics = await setup.manager.metrics()
    assert (
        counts == {name: metrics[f"answers/{name}"] for name in ("answered", "malformed")}
        and min(counts.values()) > 200
    )
    assert not [name for name in metrics if name.startswith("failures/")]
    assert [entry.text for entry in setup.bank.entries()] == before and await setup.bank.verify() == []
