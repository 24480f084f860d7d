"""Registry of environments: resolves names to classes and creates instances.

Owns the names: those of this package, those registered at run time, and those of installed packages in the entry point
group ``verl_comprl.environments``. A family is imported only when one of its environments is needed.
"""

import importlib
import inspect
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from env_adapters.base import TextEnvironment
from env_adapters.nearest import did_you_mean
from env_adapters.plain import PlainEnvironment, adapt, is_plain, rows_of

ENTRY_POINT_GROUP = "verl_comprl.environments"

# Families with dependencies have the name of the distribution's extra that installs them.
_SHIPPED = {
    "alfworld": "env_adapters.alfworld.environment:ALFWorldEnvironment",
    "frozenlake": "env_adapters.frozenlake.environment:FrozenLakeEnvironment",
    "minihack": "env_adapters.minihack.environment:MiniHackEnvironment",
    "sokoban": "env_adapters.sokoban.environment:SokobanEnvironment",
    "swebench": "env_adapters.swebench.environment:SWEBenchEnvironment",
    "vaults": "env_adapters.vaults.environment:VaultsEnvironment",
    "webshop": "env_adapters.webshop.environment:WebShopEnvironment",
}


class NotAnEnvironmentError(TypeError, ValueError):
    """A name stands for something that is no environment."""


_registered: dict[str, str | type[TextEnvironment]] = {}


def register(name: str, target: str | type[TextEnvironment]) -> None:
    """Register an environment under a name, in this process only.

    Args:
        name: Name for ``make``.
        target: The class, or its import path ``module:Class``, which is imported on first use.

    Raises:
        ValueError: If the import path is malformed or the name is already used for something else.
        TypeError: If the class is not a ``TextEnvironment`` and has no ``reset`` and ``step``.
    """
    if isinstance(target, str):
        if not all(target.partition(":")):
            raise ValueError(f"target must look like 'module:Class', got {target!r}")
    else:
        _as_class(name, target)
    known = _targets()
    if known.get(name, target) != target:
        raise ValueError(f"environment {name!r} is already registered as {known[name]!r}, got {target!r}")
    _registered[name] = target


def list_environments() -> list[str]:
    """Return the names that ``make`` knows, sorted."""
    return sorted(_targets())


def make(name: str, **options: Any) -> TextEnvironment:
    """Create an environment.

    Args:
        name: One of ``list_environments()``, or the import path ``module:Class`` of a ``TextEnvironment``,
            or of any class with its ``reset`` and ``step`` (see ``plain``).
        **options: The family's options, such as ``variant`` and ``max_turns``.

    Returns:
        A new instance; call ``reset`` next.

    Raises:
        ValueError: If the name, an option or its value is unknown.
        ImportError: If the family's dependencies are missing.
    """
    target = environment_class(name)
    parameters = inspect.signature(target).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    unknown = sorted(options.keys() - parameters.keys())
    if unknown and not takes_any:
        hint = did_you_mean(unknown[0], parameters)
        raise ValueError(
            f"environment {name!r} has no option {unknown[0]!r}; {hint}its options: {', '.join(parameters)}"
        )
    return target(**options)


def dataset_builder(name: str) -> Callable[..., list[dict[str, Any]]]:
    """Return the function that builds a family's dataset rows.

    Args:
        name: As for ``make``.

    Returns:
        A function with the parameters ``split``, ``count`` and ``seed``; the others are the family's options.

    Raises:
        ValueError: If the name is unknown or the family has no dataset builder.
        ImportError: If the family's dependencies are missing.
    """
    environment = environment_class(name)
    path = environment.dataset
    if path is None and issubclass(environment, PlainEnvironment):
        return rows_of(portable_name(name), environment)
    if path is None:
        raise ValueError(f"environment {name!r} has no dataset builder; set the class attribute 'dataset'")
    return _load(path)


def _targets() -> dict[str, str | type[TextEnvironment]]:
    return {**_announced(), **_SHIPPED, **_registered}


@cache  # entry_points() reads a file of every installed distribution: tens of milliseconds per environment
def _announced() -> dict[str, str]:
    return {entry.name: entry.value for entry in entry_points(group=ENTRY_POINT_GROUP)}


def environment_class(name: str) -> type[TextEnvironment]:
    """Return the class that a name stands for, importing its module if necessary.

    Args:
        name: As for ``make``.

    Raises:
        ValueError: If the name is unknown.
        ImportError: If the family's dependencies are missing.
        TypeError: If it is not a ``TextEnvironment`` and has no ``reset`` and ``step``.
    """
    target = _resolve(name)
    if isinstance(target, str):
        try:
            target = _load(target)
        except ImportError as error:
            hint = f'; install it with: pip install "verl-comprl[{name}]"' if name in _SHIPPED else ""
            raise ImportError(f"environment {name!r} cannot be imported ({error}){hint}") from error
    return _as_class(name, target)


def portable_name(name: str) -> str:
    """Return a name that other processes can resolve too; they do not know names registered in this one."""
    target = _registered.get(name, name)
    return target if isinstance(target, str) else f"{target.__module__}:{target.__qualname__}"


def _resolve(name: str) -> str | type[TextEnvironment]:
    targets = _targets()
    if name in targets:
        return targets[name]
    if all(name.partition(":")):
        return name
    known = ", ".join(sorted(targets))
    raise ValueError(
        f"unknown environment {name!r}; {did_you_mean(name, targets)}known: {known}. Give an import path "
        f"'module:Class', or add one with env_adapters.register(name, 'module:Class') or an entry point in group "
        f"{ENTRY_POINT_GROUP!r}"
    )


def _load(path: str) -> Any:
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except AttributeError as error:
        raise ImportError(f"module {module!r} has no {attribute!r}") from error


def _as_class(name: str, target: Any) -> type[TextEnvironment]:
    """Return the class, adapted if it is not a ``TextEnvironment`` but has its methods."""
    if isinstance(target, type) and issubclass(target, TextEnvironment):
        return target
    if is_plain(target):
        return adapt(target)
    raise NotAnEnvironmentError(
        f"environment {name!r} must be a subclass of TextEnvironment or have reset() and step(), got {target!r}"
    )
