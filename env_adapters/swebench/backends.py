"""Table of the sandbox backends: bubblewrap, Docker and remote."""

from typing import Protocol

from env_adapters.nearest import unknown_value
from env_adapters.swebench.bubblewrap import start_bubblewrap
from env_adapters.swebench.docker import start_docker
from env_adapters.swebench.remote import start_remote
from env_adapters.swebench.sandbox import Limits, Sandbox


class Start(Protocol):
    """Function that starts a sandbox."""

    def __call__(self, limits: Limits, image: str = "", *, writable: bool = False) -> Sandbox:
        """Start a sandbox.

        Args:
            limits: The limits of the sandbox.
            image: Container image that contains the repository; empty for a sandbox with an empty work tree.
            writable: Whether files outside of the work tree can be written, as evaluation scripts of images do.

        Raises:
            SandboxError: If the sandbox cannot be started.
        """
        ...


BACKENDS: dict[str, Start] = {"bubblewrap": start_bubblewrap, "docker": start_docker, "remote": start_remote}


def get_backend(name: str) -> Start:
    """Return the start function of a backend.

    Raises:
        ValueError: If the backend is unknown.
    """
    if name not in BACKENDS:
        raise ValueError(unknown_value("backend", name, BACKENDS))
    return BACKENDS[name]
