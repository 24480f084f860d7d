"""Checks that a run is the arm whose name it carries.

An arm is applied before the recipe that a run starts from, and before the command line: both can set the same keys.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_comprl.config.reading import leaves
from verl_comprl.nearest import did_you_mean

_ARMS = Path(__file__).parent / "arm"


def arm_names() -> list[str]:
    """Return the names of this package's arms, sorted."""
    return sorted(file.stem for file in _ARMS.glob("*.yaml"))


def unknown_arms(arguments: Sequence[str]) -> list[str]:
    """Return one line for each ``arm=NAME`` of the command line that does not exist; Hydra would answer with ten.

    With a config folder of the user's own, Hydra may find further arms there, so nothing is reported.
    """
    if any(argument.startswith(("-", "hydra.searchpath=")) for argument in arguments):
        return []
    named = [argument.partition("=")[2] for argument in arguments if argument.startswith("arm=")]
    known = arm_names()
    return [
        f"arm={name} is unknown; {did_you_mean(name, known)}allowed: {', '.join(known)}"
        for name in named
        if name not in known
    ]


def contradictions(config: DictConfig) -> Iterator[str]:
    """Yield a line for each setting in which the config differs from its arm (``comprl.arm``).

    A name that is not one of the arms of this package is the user's own and says nothing. An evaluation may differ from
    the run that it evaluates: a baseline can be given a bank.
    """
    name = config.comprl.arm
    file = _ARMS / f"{name}.yaml"
    if config.trainer.val_only or not file.exists():
        return
    arm: Any = OmegaConf.to_container(OmegaConf.load(file))
    for subtree, settings in arm.items():
        for key, wanted in leaves(subtree, settings):
            value = OmegaConf.select(config, key)
            if value == wanted:
                continue
            yield (
                f"arm={name} means {key}={_shown(wanted)}, but the recipe or the command line sets {_shown(value)}; "
                f"add {key}={_shown(wanted)}, or give your arm a name of its own with comprl.arm"
            )


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
