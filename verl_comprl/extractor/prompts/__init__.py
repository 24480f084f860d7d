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


def render_trajectory(turns: Sequence[Turn], first: int = 1) -> str:
    """Return an episode as text: every observation with the actor's answer, numbered from ``first``."""
    return "\n\n".join(
        f"Turn {index}\nObservation:\n{turn.observation}\nAnswer:\n{turn.response}"
        for index, turn in enumerate(turns, start=first)
    )


def distill_messages(
    goal: str,
    experience: Sequence[str],
    trajectory: str,
    success: bool,
    max_operations: int = 3,
    *,
    votes: bool = False,
) -> list[Message]:
    """Return the prompt that asks for operations on a finished episode: add, update, return, and votes if wanted.

    ``experience`` is numbered from 1.
    """
    return _messages(
        "distill",
        system={
            "max_operations": max_operations,
            "votes": _template("distill.votes").substitute() + "\n" if votes else "",
        },
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
