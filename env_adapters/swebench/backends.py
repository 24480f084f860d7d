"""Which kinds of sandboxes there are."""

from typing import Protocol

from env_adapters.swebench.bubblewrap import start_bubblewrap
from env_adapters.swebench.docker import start_docker
from env_adapters.swebench.remote import start_remote
from env_adapters.swebench.sandbox import Limits, Sandbox


class Start(Protocol):
    """Starts a sandbox."""

    def __call__(self, limits: Limits, image: str = "", *, writable: bool = False) -> Sandbox:
        """Start it.

        Args:
            limits: The limits in it.
            image: What it is made from, with the repository in it; empty for an empty work tree.
            writable: Whether files outside of the work tree can be written, as evaluation scripts of images do.

        Raises:
            SandboxError: If it cannot be started.
        """
        ...


BACKENDS: dict[str, Start] = {"bubblewrap": start_bubblewrap, "docker": start_docker, "remote": start_remote}


def get_backend(name: str) -> Start:
    """Return what starts the sandboxes of a kind.

    Raises:
        ValueError: If there is no such kind.
    """
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}; known: {', '.join(BACKENDS)}")
    return BACKENDS[name]
