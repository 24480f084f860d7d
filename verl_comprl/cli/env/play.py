"""``comprl env play``: a person plays an episode in the terminal and reads the text that a model would read."""

import argparse
import json
import sys
from contextlib import closing, suppress
from typing import Any

from env_adapters import TextEnvironment, make
from verl_comprl.cli.environment_options import chosen_options
from verl_comprl.display.printable import printable
from verl_comprl.display.units import counted
from verl_comprl.rollout.messages import Message, initial_messages, observation_message
from verl_comprl.rollout.tool_schema import SEARCH_AND_ASK_SCHEMA

_PROMPT = "> "


def run(options: argparse.Namespace) -> int:
    """Play one episode.

    Raises:
        ValueError: If the environment, an option or the seed is unknown or out of range.
        ImportError: If the environment's dependencies are missing.
    """
    with suppress(ImportError):  # editing of the line and its history, where Python was built with it
        import readline  # noqa: F401  input() uses it once it is loaded
    with closing(make(options.environment, **chosen_options(options))) as environment:
        observation, _ = environment.reset(seed=options.seed)
        for message in first_messages(environment, observation, options.experience):
            _show(message)
        if tools := offered_tools(environment, options.experience):
            _show({"role": "tools", "content": "\n".join(map(json.dumps, tools))})
        _play(environment)
    return 0


def first_messages(environment: TextEnvironment, observation: str, experience: str | None) -> list[Message]:
    """Return the messages that an episode begins with, as the agent loop makes them of a row of the dataset."""
    prompt = [
        {"role": "system", "content": environment.instructions},
        {"role": "user", "content": environment.goal},
    ]
    return initial_messages(prompt, observation, experience)


def offered_tools(environment: TextEnvironment, experience: str | None) -> list[dict[str, Any]]:
    """Return the schemas that a model's chat template puts before the messages, as the agent loop hands them over."""
    return [*environment.tools, *([] if experience is None else [SEARCH_AND_ASK_SCHEMA])]


def _play(environment: TextEnvironment) -> None:
    turns, total = 0, 0.0
    while True:
        try:
            text = input(_PROMPT)
        except (EOFError, KeyboardInterrupt):
            print(f"\nleft after {counted(turns, 'turn', 'turns')}")
            return
        if not sys.stdin.isatty():
            print(text)  # what a person types is on the terminal already
        observation, reward, terminated, truncated, info = environment.step(text)
        turns, total = turns + 1, total + reward
        if terminated or truncated:
            print(f"\n{printable(observation)}\n")
            outcome = "success" if info["success"] else "no success"
            ended = "" if terminated else " (out of turns)"
            print(
                f"{outcome} after {counted(turns, 'turn', 'turns')}{ended}: reward {total:g}, score {info['score']:g}"
            )
            return
        _show(observation_message(observation))


def _show(message: Message) -> None:
    print(f"\n--- {message['role']} ---\n{printable(message['content'])}\n")
