"""Groups of settings and their values: which of verl's settings are groups, and settings that are the other thing.

verl's settings are read from a file that comes with it: to compose them takes seconds.
"""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from verl_comprl.record.settings_file import read_settings

_COMPOSED = "trainer/config/_generated_ppo_trainer.yaml"
"""verl's whole config in one file."""
_OF_EXTRACTOR = ("model", "actor", "rollout")
"""Parts of ``actor_rollout_ref`` that the extractor has, too."""


def verl_settings() -> dict[str, Any]:
    """Return verl's settings with their defaults, and those of the extractor; empty without verl."""
    verl = find_spec("verl")
    file = Path(verl.origin).parent / _COMPOSED if verl and verl.origin else None
    if file is None or not file.exists():
        return {}
    settings = read_settings(file)
    model = settings.get("actor_rollout_ref", {})
    return {**settings, "extractor": {part: model[part] for part in _OF_EXTRACTOR if part in model}}


def misplaced(given: Mapping[str, Any], settings: Mapping[str, Any], within: str = "") -> Iterator[str]:
    """Yield a line for each group that was given for a value, and for each value that was given for a group.

    Args:
        given: Settings as plain values, not resolved.
        settings: Those that they replace, likewise. What is null may become either, as may a reference to others.
        within: Name of their group with a dot at its end.
    """
    for key, new in given.items():
        name, old = f"{within}{key}", settings.get(key)
        if _may_be_either(new) or _may_be_either(old):
            continue
        if isinstance(new, dict) and isinstance(old, dict):
            yield from misplaced(new, old, f"{name}.")
        elif isinstance(new, dict):
            yield f"{name} is a value, not a group of settings"
        elif isinstance(old, dict):
            yield f"{name}={new!r} is not allowed; it must be a group of settings"


def _may_be_either(value: Any) -> bool:
    return value is None or (isinstance(value, str) and "${" in value)
