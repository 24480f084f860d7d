"""Hydra overrides as text: which setting one changes, and what several ones change together."""

from collections.abc import Sequence


def key(override: str) -> str:
    """Return the setting or config group that an override changes."""
    return override.partition("=")[0].lstrip("+~")


def effective(overrides: Sequence[str]) -> dict[str, str]:
    """Return what overrides change, as Hydra applies them, so that equal results mean equal changes.

    Args:
        overrides: In their order; of several for the same key the last one counts.

    Returns:
        By key the value as it is written; ``~`` in front of it if the key is removed.
    """
    changes: dict[str, str] = {}
    for override in overrides:
        operator, _, value = override.partition("=")
        if operator.startswith("~"):
            value = f"~{value}"
        elif value.startswith("{"):  # Hydra merges a mapping into what is there
            value = changes.get(key(override), "") + value
        changes[key(override)] = value
    return changes
