"""Arguments that choose an environment's options, and the options that they give."""

import argparse
import json
from typing import Any


def environment_names(prefix: str, **_: Any) -> list[str]:
    """Return the environments' names, for the shell's completion."""
    from env_adapters import list_environments

    return [name for name in list_environments() if name.startswith(prefix)]


def add_environment(parser: argparse.ArgumentParser) -> None:
    """Add the environment and its options."""
    name: Any = parser.add_argument(
        "environment", help="name of an environment, such as minihack, or module:Class of your own"
    )
    name.completer = environment_names
    parser.add_argument("--max-turns", type=int, help="maximum turns per episode (default: the environment's)")
    parser.add_argument("--variant", help="same as -o variant=VARIANT, such as room-ultimate")
    chosen = "set another option of the environment; VALUE is JSON or plain text"
    parser.add_argument("-o", "--option", action="append", default=[], metavar="NAME=VALUE", help=chosen)


def chosen_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the environment's options that were given.

    Raises:
        ValueError: If one is not ``name=value``.
    """
    given = {"max_turns": options.max_turns, "variant": options.variant}
    return {name: value for name, value in given.items() if value is not None} | dict(map(_option, options.option))


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"option {text!r} must look like name=value")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value  # plain text
