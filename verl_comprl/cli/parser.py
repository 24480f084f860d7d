"""Argument parser that names the nearest of the allowed names when one is wrong."""

import argparse
from typing import Any

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

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # The only place where argparse knows both the value and what is allowed; it suggests by itself from 3.14 on.
        if action.choices is not None and value not in action.choices:
            choices = list(map(str, action.choices))
            hint = did_you_mean(str(value), choices)
            raise argparse.ArgumentError(action, f"unknown {str(value)!r}; {hint}allowed: {', '.join(choices)}")
