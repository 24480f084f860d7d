"""Where environments run: many episodes at the same time, none of which can stop the others or the caller's loop."""

from env_adapters.host.host import EnvironmentHost, Limits, Session
from env_adapters.host.worker import EnvironmentFailure

__all__ = ["EnvironmentFailure", "EnvironmentHost", "Limits", "Session"]
