"""Runs many environments concurrently, in threads or processes, without blocking the caller's event loop."""

from env_adapters.host.host import EnvironmentHost, Limits, Session
from env_adapters.host.worker import EnvironmentFailure

__all__ = ["EnvironmentFailure", "EnvironmentHost", "Limits", "Session"]
