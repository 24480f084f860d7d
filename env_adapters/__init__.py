"""Text environments behind one interface.

Owns the interface, the registry and one folder per environment family. Importing this package loads no engine; each
family is importable without the others' dependencies, and nothing here knows of training or of ``verl_comprl``.
"""

from env_adapters.base import INFO_KEYS, TextEnvironment, Transition
from env_adapters.registry import dataset_builder, list_environments, make, register

__all__ = [
    "INFO_KEYS",
    "TextEnvironment",
    "Transition",
    "dataset_builder",
    "list_environments",
    "make",
    "register",
]
