"""Bridges from gymnasium, GEM and OpenEnv environments to text environments, and from text environments to gymnasium.

A bridge is a class: create it with an object of the other library, or subclass it so that a dataset can name it by its
import path. None of the libraries is imported here; protocols describe the methods that an object must have. The
opposite direction, ``as_gymnasium``, needs gymnasium and is imported from its own module.
"""

from env_adapters.bridges.base import Bridge, bridged_rows
from env_adapters.bridges.from_gem import GemEnvironment
from env_adapters.bridges.from_gymnasium import GymnasiumEnvironment
from env_adapters.bridges.from_openenv import OpenEnvEnvironment

__all__ = ["Bridge", "GemEnvironment", "GymnasiumEnvironment", "OpenEnvEnvironment", "bridged_rows"]
