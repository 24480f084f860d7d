"""Argument parser that names the nearest of the allowed names when one is wrong."""

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from verl_comprl.nearest import did_you_mean


class Formatter(argparse.HelpFormatter):
    """As its base, but a sub-command and its help are on one line: argparse measures the names without their indent."""

    def add_argument(self, action: argparse.Action) -> None:
        """Measure an argument."""
        super().add_argument(action)
        if action.nargs == argparse.PARSER:
            self._action_max_length += self._indent_increment


class Parser(argparse.ArgumentParser):
    """As its base; its sub-parsers are of this class, too."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take the base's arguments."""
        super().__init__(*args, **{"formatter_class": Formatter, **options})
        self._words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse what is left over: a sub-command's own parser does so, since the outermost has the wrong usage."""
        self._words = () if args is None else list(args)
        options, left = super().parse_known_args(args, namespace)
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}")
        return options, left

    def error(self, message: str) -> NoReturn:
        """Add the options that are nearest to unknown ones: these may be why a required one is missing."""
        super().error("; ".join([message, *self._hints()]))

    def _hints(self) -> list[str]:
        known = list(self._option_string_actions)
        names = [word.partition("=")[0] for word in self._words if word.startswith("--") and word != "--"]
        unknown = [name for name in names if not any(option.startswith(name) for option in known)]
        return [f"unknown {name!r}, {hint.rstrip()}" for name in unknown if (hint := did_you_mean(name, known))]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # The only place where argparse knows both the value and what is allowed; it suggests by itself from 3.14 on.
        if action.choices is not None and value not in action.choices:
            choices = list(map(str, action.choices))
            hint = did_you_mean(str(value), choices)
            raise argparse.ArgumentError(action, f"unknown {str(value)!r}; {hint}allowed: {', '.join(choices)}")
