"""Argument parser that names the nearest of the allowed names when one is wrong."""

import argparse
from typing import Any

from verl_comprl.nearest import did_you_mean


class Parser(argparse.ArgumentParser):
    """As its base; its sub-parsers are of this class, too."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # The only place where argparse knows both the value and what is allowed; it suggests by itself from 3.14 on.
        if action.choices is not None and value not in action.choices:
            choices = list(map(str, action.choices))
            hint = did_you_mean(str(value), choices)
            raise argparse.ArgumentError(action, f"unknown {str(value)!r}; {hint}allowed: {', '.join(choices)}")
