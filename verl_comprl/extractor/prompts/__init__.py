"""Fills the extractor's prompt templates, the text files in this package, into chat messages."""

from collections.abc import Sequence
from typing import Any

from verl_comprl.experience.schema import ASKED_WEIGHT, Experience, TaskUsage, Turn
from verl_comprl.extractor.prompts.names import MOST_NAMES, shown_name, shown_names
from verl_comprl.extractor.prompts.quoting import Quote, quoted
from verl_comprl.extractor.prompts.templates import fill

Message = dict[str, Any]


def _messages(call: str, *, system: dict[str, Any] | None = None, **user: Any) -> list[Message]:
    return [
        {"role": "system", "content": fill(f"{call}.system", **system or {})},
        {"role": "user", "content": fill(f"{call}.user", **user)},
    ]


def _numbered(texts: Sequence[str], start: int = 1) -> str:
    entries = (fill("entry", number=number, text=text) for number, text in enumerate(texts, start))
    return "\n\n".join(entries) or "(none)"


def render_trajectory(
    turns: Sequence[Turn], final_observation: str = "", *, left_out: int = 0, quote: Quote = quoted
) -> str:
    """Return ``τ = (s_0, a_0, …, s_T)`` as text: numbered turns, then the final observation.

    Args:
        turns: In order. Advice that the actor asked for is marked as such, since it is neither observation nor action.
        final_observation: ``s_T``; "" if there is none.
        left_out: Turns missing from the middle of ``turns``, which the text states.
        quote: That of the model that reads it (``ExtractorCalls.quote``); here and below, one for any model by default.
    """
    middle = len(turns) // 2
    parts = []
    for index, turn in enumerate(turns):
        if left_out and index == middle:
            parts.append(fill("turn.left_out", number=left_out))
        number = index + 1 + (left_out if index >= middle else 0)
        asked = [fill("turn.question", query=quote(item.query), answer=quote(item.answer)) for item in turn.questions]
        observation = "\n".join([quote(turn.observation), *asked])
        parts.append(fill("turn", number=number, observation=observation, response=quote(turn.response)))
    if final_observation:
        parts.append(fill("turn.final", observation=quote(final_observation)))
    return "\n\n".join(parts)


def distill_messages(
    instructions: str,
    goal: str,
    experience: Sequence[str],
    trajectory: str,
    success: bool,
    max_operations: int = 3,
    *,
    similar: Sequence[str] = (),
    votes: bool = False,
    quote: Quote = quoted,
) -> list[Message]:
    """Return the prompt that asks for operations on a finished episode: add, update, return, and votes if wanted.

    Args:
        instructions: The environment's rules and actions.
        goal: The task.
        experience: Entries that the actor read, numbered from 1.
        trajectory: From ``render_trajectory``.
        success: The outcome.
        max_operations: Operations that one answer may have.
        similar: Further entries, with the numbers after those.
        votes: Whether the answer may vote on entries that the actor read.
        quote: That of the model that reads the prompt.
    """
    return _messages(
        "distill",
        system={
            "max_operations": max_operations,
            "votes": fill("distill.system.votes") + "\n" if votes else "",
        },
        # They describe tools in the environment's words. Rules of environments often begin with "Rules:" themselves.
        instructions=quote(instructions, part="rules") or "(none)",
        goal=quote(goal),
        experience=_numbered(list(map(quote, experience))),
        similar=_numbered(list(map(quote, similar)), start=len(experience) + 1),
        trajectory=trajectory,
        outcome="success" if success else "failure",
    )


def render_entry(entry: Experience, *, step: int, asked_weight: float = ASKED_WEIGHT, quote: Quote = quoted) -> str:
    """Return an entry with its record, as a merge lists it.

    The record is one line, such as ``(tasks: room; age 12 steps; used 9 times, 67 % success (44 % without))``. Of an
    entry of several tasks it shows the uses in each. Where at least half of the uses can be compared with the free half
    of their steps, both rates are those of these uses. Names are shown as in ``names``, and of an entry of very many
    tasks those in which it was used most.

    Args:
        entry: The entry.
        step: Current actor step.
        asked_weight: Weight of an episode that read the entry only through an answer.
        quote: That of the model that reads it.
    """
    tasks = {*entry.tasks, *(usage.task for usage in entry.usage)}
    age = max(0, step - entry.created_step)  # an imported entry has the step of the run that wrote it
    record = [f"age {_counted(age, 'step')}"]
    more = len(entry.usage) - MOST_NAMES
    by_use = sorted(entry.usage, key=lambda usage: -(usage.uses + usage.asked)) if more > 0 else entry.usage
    for usage in by_use[:MOST_NAMES]:
        name = f"{shown_name(usage.task)}: " if len(tasks) > 1 else ""
        record.append(name + _render_usage(usage, asked_weight))
    if more > 0:
        record.append(f"used in {_counted(more, 'further task')}")
    if not entry.usage:
        record.append("not used yet")
    return fill("entry.record", tasks=shown_names(entry.tasks), record="; ".join(record), text=quote(entry.text))


def _render_usage(usage: TaskUsage, asked_weight: float) -> str:
    read = [f"used {_counted(usage.uses, 'time')}"] if usage.uses else []
    read += [f"read in {_counted(usage.asked, 'answer')}"] if usage.asked else []
    episodes, successes = usage.weighted(asked_weight)
    if usage.compared and 2 * usage.compared >= episodes:
        rates = usage.compared_successes / usage.compared, usage.free_successes / usage.compared
        return f"{' and '.join(read)}, {rates[0]:.0%} success ({rates[1]:.0%} without)"
    return " and ".join(read) + (f", {successes / episodes:.0%} success" if episodes else "")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def merge_messages(entries: Sequence[str]) -> list[Message]:
    """Return the prompt that asks for operations (retain, merge, discard) on entries, given by ``render_entry``."""
    return _messages("merge", entries=_numbered(entries))


def answer_messages(experience: str, query: str, *, quote: Quote = quoted) -> list[Message]:
    """Return the prompt that asks for an answer to a ``search_and_ask`` query from one entry."""
    return _messages("answer", experience=quote(experience), query=quote(query))
