"""This node's place among the others, and the store that they share, which is torchrun's own.

Keys: ``seen`` (first node's address as another node sees it), ``head`` (Ray's address, versions, and the token if the
user has set none), ``all`` (every node has joined), ``lost`` (why a node gave up), ``end`` (exit code), and the counts
``here`` and ``left``.
"""

import socket
from collections.abc import Mapping
from datetime import timedelta

from verl_comprl.launch.limits import LaunchError, join_seconds, number

TOKEN = "RAY_AUTH_TOKEN"
"""Ray's own variable; one that the user has set on all nodes is not put into the store."""


class RunStore:
    """Strings and counts of one attempt of one run."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Connect to the store that torchrun names in ``environment``.

        Raises:
            ValueError: If a variable is missing or no number.
            LaunchError: If there is no store at that address.
        """
        try:
            prefix = "GROUP_" if environment.get("GROUP_RANK") else ""  # torchrun's numbers of nodes, not of processes
            self.rank = int(number(environment, f"{prefix}RANK"))
            self.nodes = int(number(environment, f"{prefix}WORLD_SIZE"))
            host, port = environment["MASTER_ADDR"], int(number(environment, "MASTER_PORT"))
        except KeyError as error:
            raise ValueError(f"{error.args[0]} is not set; start this with torchrun (docs/launch.md)") from None
        # Late, as it takes seconds and mistakes in the variables should not.
        from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]

        # Without torchrun (RANK and the others set by hand) the first node hosts the store.
        hosts = self.rank == 0 and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        seconds = timedelta(seconds=join_seconds())
        try:
            store = TCPStore(host, port, is_master=hosts, wait_for_workers=False, timeout=seconds)
            # The address of the interface that reaches the first node; a datagram socket sends nothing to find out.
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((host, port))
                self.ip, self.first_ip = probe.getsockname()[0], probe.getpeername()[0]
        except (RuntimeError, OSError) as error:
            raise LaunchError(f"no store at MASTER_ADDR={host} MASTER_PORT={port}: {error}") from error
        run, attempt = environment.get("TORCHELASTIC_RUN_ID", ""), environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = PrefixStore(f"comprl/{run}/{attempt}", store)

    def set(self, key: str, value: str) -> None:
        """Set ``key`` for all nodes.

        Raises:
            LaunchError: Like all methods, if the store is gone.
        """
        try:
            self._store.set(key, value)
        except RuntimeError as error:
            raise LaunchError(f"the store of the first node is gone: {error}") from error

    def get(self, key: str) -> str:
        """Return the value of ``key``, or nothing if it has not been set."""
        try:
            return self._store.get(key).decode() if self._store.check([key]) else ""
        except RuntimeError as error:
            raise LaunchError(f"the store of the first node is gone: {error}") from error

    def add(self, key: str, amount: int) -> int:
        """Add to a count and return it."""
        try:
            return self._store.add(key, amount)
        except RuntimeError as error:
            raise LaunchError(f"the store of the first node is gone: {error}") from error
