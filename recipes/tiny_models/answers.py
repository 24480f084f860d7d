"""Scripted answers of the extractor, in the form in which a run reads them.

Owns the form; which entries and operations an answer contains is the recipe's.
"""

import json
from collections.abc import Sequence
from typing import Any

from verl_comprl.experience.schema import ASKED_WEIGHT, Experience, TaskUsage
from verl_comprl.extractor.prompts import render_entry
from verl_comprl.rollout.messages import Message

Operation = dict[str, Any]
"""One operation as an answer has it, such as ``{"operation": "discard", "ids": [1]}``."""


def text_answer(text: str, *, reason: str = "") -> Message:
    """Return an answer, after the reason for it if one is given."""
    answer = f"<answer>{text}</answer>"
    return {"role": "assistant", "content": f"{reason}\n{answer}" if reason else answer}


def operations_answer(operations: Sequence[Operation], *, reason: str = "") -> Message:
    """Return an answer of operations; as ``text_answer``."""
    return text_answer(json.dumps(operations), reason=reason)


def text_fields(entry: Experience) -> dict[str, str]:
    """Return the fields of an operation that writes the text of an entry."""
    return {"title": entry.title, "content": entry.content}


def listed_entry(entry: Experience, usage: TaskUsage, *, free_success: float, step: int) -> str:
    """Return an entry with its record as a merge lists it at ``step``.

    Args:
        entry: Without record.
        usage: All its uses; none if they are zero.
        free_success: What the free half's success was in all their steps.
        step: Actor step of the merge.
    """
    episodes, successes = usage.weighted(ASKED_WEIGHT)
    counts = {"compared": episodes, "compared_successes": successes, "free_successes": episodes * free_success}
    used = (usage.model_copy(update=counts),) if episodes else ()
    return render_entry(entry.model_copy(update={"usage": used}), step=step)


def retain_others(operations: Sequence[Operation], count: int) -> list[Operation]:
    """Return the operations of a merge, and one that retains those of the entries 1 to ``count`` that they leave."""
    changed = [id for operation in operations for id in operation["ids"]]
    left = [id for id in range(1, count + 1) if id not in changed]
    return [*operations, *([{"operation": "retain", "ids": left}] if left else [])]
