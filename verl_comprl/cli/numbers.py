"""Types of command-line arguments that are numbers within bounds."""

import argparse
import math

_MOST = 2**31 - 1


def count(text: str) -> int:
    """Return a whole number of at least 0."""
    return _whole_number(text, 0)


def positive(text: str) -> int:
    """Return a whole number of at least 1."""
    return _whole_number(text, 1)


def _whole_number(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, got {text}")
    if number > _MOST:
        raise argparse.ArgumentTypeError(f"must be at most {_MOST}, got {text}")
    return number


def temperature(text: str) -> float:
    """Return a finite number of at least 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a finite number of at least 0, got {text}")
    return number
