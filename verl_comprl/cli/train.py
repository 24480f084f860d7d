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
    """Return the arms and our settings that begin with ``prefix``, for the shell's completion."""
    from omegaconf import OmegaConf

    from verl_comprl import config
    from verl_comprl.config.arm_check import arm_names
    from verl_comprl.config.reading import GROUP, leaves

    if prefix.startswith("arm="):
        names = [f"arm={name}" for name in arm_names()]
    else:
        defaults: Any = OmegaConf.load(Path(config.__file__).parent / "comprl/default.yaml")
        names = ["arm=", *(f"{name}=" for name, _ in leaves(GROUP, OmegaConf.to_container(defaults)))]
    return [name for name in names if name.startswith(prefix)]
