"""Command ``comprl train``: everything after it goes to Hydra; here are its help line and the shell's completion."""

import argparse
from pathlib import Path
from typing import Any


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add the sub-command, for the list of commands and for completion."""
    parser = commands.add_parser("train", help="train actor and extractor (comprl train --help)", add_help=False)
    overrides: Any = parser.add_argument("overrides", nargs="*", metavar="key=value")
    overrides.completer = setting_names


def run(arguments: list[str]) -> int:
    """Train with these Hydra overrides."""
    from verl_comprl.train import main

    return main(arguments)


def setting_names(prefix: str, **_: Any) -> list[str]:
    """Return the arms and the settings that begin with ``prefix``, for the shell's completion."""
    from verl_comprl.config.arm_check import arm_names

    names = [f"arm={name}" for name in arm_names()] if prefix.startswith("arm=") else ["arm=", *_settings()]
    return [name for name in names if name.startswith(prefix)]


def _settings() -> list[str]:
    """Return the names of all settings, ours, the extractor's and verl's, each with its ``=``.

    They are read from files: importing verl and composing take seconds, and a shell asks at every key.
    """
    from verl_comprl import config
    from verl_comprl.config.groups import verl_settings
    from verl_comprl.config.reading import GROUP
    from verl_comprl.record.settings_file import read_settings

    ours = Path(config.__file__).parent
    found = _names({GROUP: read_settings(ours / "comprl/default.yaml")})
    found += [*_names(read_settings(ours / "comprl_trainer.yaml")), *_names(verl_settings())]
    return [f"{name}=" for name in dict.fromkeys(found) if not name.endswith("._target_")]


def _names(groups: dict[str, Any]) -> list[str]:
    from verl_comprl.config.reading import leaves

    return [name for group, values in groups.items() if group != "defaults" for name, _ in leaves(group, values)]
