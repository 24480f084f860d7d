"""Text environments for LLM agents behind one interface.

Owns the interface, the registry and one folder per environment family: a benchmark or game with its options. Importing
this package loads no engine. Each family can be imported without the dependencies of the others, and nothing here
imports ``verl_comprl``.
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
