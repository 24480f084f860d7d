"""Formats numbers for the terminal."""

import math


def percent(share: float | None) -> str:
    """Return a share of 1 in percent."""
    return "-" if share is None else f"{100 * share:.0f} %"


def duration(seconds: float) -> str:
    """Return seconds, from two minutes on with minutes, from two hours on as hours and minutes."""
    if not math.isfinite(seconds):
        return "-"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def counted(number: float, one: str, several: str) -> str:
    """Return a number with its noun."""
    return f"{number:.0f} {one if number == 1 else several}"
