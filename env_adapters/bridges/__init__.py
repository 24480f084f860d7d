"""Other libraries' environments as text environments, and ours as gymnasium's.

A bridge is a class: call it around an object, or subclass it in ten lines to give the result a name that a dataset can
carry. None of the libraries is imported here; what an object must look like is written down as a protocol. The way
back, ``as_gymnasium``, needs gymnasium and is imported from its own module.
"""

from env_adapters.bridges.base import Bridge, bridged_rows
from env_adapters.bridges.from_gem import GemEnvironment
from env_adapters.bridges.from_gymnasium import GymnasiumEnvironment
from env_adapters.bridges.from_openenv import OpenEnvEnvironment

__all__ = ["Bridge", "GemEnvironment", "GymnasiumEnvironment", "OpenEnvEnvironment", "bridged_rows"]
