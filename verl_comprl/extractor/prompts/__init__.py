"""Fills the extractor's prompt templates, the text files in this package, into chat messages."""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

from verl_comprl.experience.schema import Turn

Message = dict[str, Any]


@cache
def _template(name: str) -> Template:
    return Template(files(__name__).joinpath(f"{name}.txt").read_text(encoding="utf-8").strip())


def _messages(call: str, *, system: dict[str, Any] | None = None, **user: Any) -> list[Message]:
    return [
        {"role": "system", "content": _template(f"{call}.system").substitute(system or {})},
        {"role": "user", "content": _template(f"{call}.user").substitute(user)},
    ]


def _numbered(texts: Sequence[str]) -> str:
    return "\n\n".join(f"{index}. {text}" for index, text in enumerate(texts, start=1)) or "(none)"


def render_trajectory(turns: Sequence[Turn], final_observation: str = "", *, left_out: int = 0) -> str:
    """Return ``τ = (s_0, a_0, …, s_T)`` as text: numbered turns, then the final observation.

    Args:
        turns: In order. Advice that the actor asked for is marked as such, since it is neither observation nor action.
        final_observation: ``s_T``; "" if there is none.
        left_out: Turns missing from the middle of ``turns``, which the text states.
    """
    middle = len(turns) // 2
    parts = []
    for index, turn in enumerate(turns):
        if left_out and index == middle:
            parts.append(f"({left_out} turns left out)")
        number = index + 1 + (left_out if index >= middle else 0)
        asked = "".join(f"\nQuestion:\n{item.query}\nAdvice:\n{item.answer}" for item in turn.questions)
        parts.append(f"Turn {number}\nObservation:\n{turn.observation}{asked}\nAnswer:\n{turn.response}")
    if final_observation:
        parts.append(f"Final observation:\n{final_observation}")
    return "\n\n".join(parts)


def distill_messages(
    instructions: str,
    goal: str,
    experience: Sequence[str],
    trajectory: str,
    success: bool,
    max_operations: int = 3,
    *,
    votes: bool = False,
) -> list[Message]:
    """Return the prompt that asks for operations on a finished episode: add, update, return, and votes if wanted.

    ``instructions`` are the environment's rules and actions; ``experience`` is numbered from 1.
    """
    return _messages(
        "distill",
        system={
            "max_operations": max_operations,
            "votes": _template("distill.votes").substitute() + "\n" if votes else "",
        },
        instructions=instructions or "(none)",
        goal=goal,
        experience=_numbered(experience),
        trajectory=trajectory,
        outcome="success" if success else "failure",
    )


def merge_messages(entries: Sequence[str]) -> list[Message]:
    """Return the prompt that asks for operations (retain, merge, discard) on a chunk of bank entries."""
    return _messages("merge", entries=_numbered(entries))


def answer_messages(experience: str, query: str) -> list[Message]:
    """Return the prompt that asks for an answer to a ``search_and_ask`` query from one entry."""
    return _messages("answer", experience=experience, query=query)
