"""Runs grouped by arm, or by other settings of their saved configuration."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from verl_comprl.curves.run import Run

ARM = "comprl.arm"

_FREE = {
    "total_training_steps",
    "save_freq",
    "test_freq",
    "experiment_name",
    "default_local_dir",
    "resume_mode",
    "resume_from_path",
    "comprl.bank.path",
    "comprl.bank.collection",
    "comprl.queue.folder",
    "comprl.initial_bank",
}
"""Settings in which runs of a group may differ besides seeds."""

_FOLDERS = re.compile(r"[^'\"]*/")
"""In ``repr`` of a path, or of a list of paths, what is before the last name of each."""


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds."""

    name: str
    arm: str
    runs: tuple[Run, ...]

    @property
    def is_reference(self) -> bool:
        """Whether the runs have no experience, so that the others are compared with them."""
        return not any(run.has_experience for run in self.runs)

    def differences(self) -> list[str]:
        """Return the settings in which the runs differ though they are taken for seeds of one thing."""
        flat = [dict(_flat(run.config)) for run in self.runs]
        keys = dict.fromkeys(key for settings in flat for key in settings)
        found = ((key, [settings.get(key) for settings in flat]) for key in keys)
        return [key for key, values in found if len(set(map(_named, values))) > 1 and not _may_differ(key)]


def group_runs(runs: Sequence[Run], keys: Sequence[str] = (ARM,)) -> list[Group]:
    """Return the groups of runs with the same values of settings, in the order of their first runs.

    Raises:
        ValueError: If a run does not have one of these settings, or one is a section of them.
    """
    unique = {run.folder.resolve(): run for run in runs}
    groups: dict[str, list[Run]] = {}
    for run in unique.values():
        groups.setdefault(", ".join(_label(key, run.setting(key)) for key in keys), []).append(run)
    return [Group(name, found[0].arm, tuple(found)) for name, found in groups.items()]


def _label(key: str, value: Any) -> str:
    if isinstance(value, dict):
        settings = [f"{key}.{name}" for name, item in value.items() if not isinstance(item, dict)]
        hint = f"; its settings: {', '.join(settings[:8])}" + (" …" if len(settings) > 8 else "") if settings else ""
        raise ValueError(f"{key} is a section, not a setting{hint}")
    return str(value).replace("_", " ") if key == ARM else f"{key.rpartition('.')[2].replace('_', ' ')} {value}"


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _flat(item, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def _named(value: Any) -> str:
    """Return a value as text, a path without its folders: each seed may have its data and models in one of its own."""
    return _FOLDERS.sub("", repr(value))


def _may_differ(key: str) -> bool:
    name = key.rpartition(".")[2]
    return "seed" in name or not _FREE.isdisjoint((name, key))
