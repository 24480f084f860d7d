"""This node's processes: its ``ray start``, and on the first node the training."""

import argparse
import json
import os
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

from env_adapters.host.temporary import PREFIX, TEMPORARY
from verl_comprl.launch.limits import leave_seconds, poll_until
from verl_comprl.platform import child
from verl_comprl.platform.child import Process
from verl_comprl.platform.launchers import strip_launcher_variables
from verl_comprl.platform.ray_daemons import set_daemon_variables
from verl_comprl.platform.temporary import SOCKETS

# Ray's fixed ports would keep a second run from this machine; COMPRL_RAY_START can set them again for a firewall.
_NO_FIXED_PORTS = ("--dashboard-agent-listen-port", "0", "--min-worker-port", "0", "--max-worker-port", "0")


class Node:
    """Processes that were started here, and the folder of this node's Ray."""

    def __init__(self, rank: int, nodes: int, ip: str, environment: Mapping[str, str]) -> None:
        """Start nothing yet.

        Args:
            rank: This node's number; tasks of Ray can be pinned to it by the resource ``comprl_node_<rank>``.
            nodes: How many there are.
            ip: Its address towards the other nodes.
            environment: This process's; children get it without the launchers' variables.
        """
        self.rank, self.ip = rank, ip
        # A short path, since Ray's sockets have long names; its own, so that no other ray.init() finds this Ray.
        self.folder = Path(tempfile.mkdtemp(prefix="comprl-", dir=environment.get("RAY_TMPDIR") or "/tmp"))
        self._ray_output = self.folder / "ray_start.txt"
        self.environment = dict(environment) | {"RAY_TMPDIR": str(self.folder)}
        self.environment.pop("RAY_ADDRESS", None)  # of another cluster
        self._temporary = {SOCKETS: self.folder / "sockets", TEMPORARY: self.folder / "env"}
        with suppress(OSError):  # a scheduler's folder, with room for what they write
            if place := environment.get("TMPDIR"):
                self._temporary[TEMPORARY] = Path(tempfile.mkdtemp(prefix=PREFIX, dir=os.path.abspath(place)))
        for variable, folder in self._temporary.items():
            folder.mkdir(exist_ok=True)
            self.environment.setdefault(variable, str(folder))
        strip_launcher_variables(self.environment)
        set_daemon_variables(self.environment)
        if nodes > 1 and (interface := gloo_interface(ip)):
            self.environment.setdefault("GLOO_SOCKET_IFNAME", interface)
        self._started: list[Process] = []

    def start(self, *command: str, output: IO[bytes] | None = None) -> Process:
        """Start Python with ``command``, see ``child.start``; ``stop`` ends it."""
        process = child.start(*command, environment=self.environment, output=output)
        self._started.append(process)
        return process

    def start_ray(self, *options: str) -> Process:
        """Start Ray's part of this node; ``COMPRL_RAY_START`` has further options of ``ray start``."""
        own = ("--node-ip-address", self.ip, "--temp-dir", str(self.folder / "ray"), "--disable-usage-stats", "--block")
        resources, given = ray_options(self.environment)
        mark = ("--resources", json.dumps(resources | {f"comprl_node_{self.rank}": 1}))
        command = ("-m", "ray.scripts.scripts", "start", *options, *own, *mark, *_NO_FIXED_PORTS, *given)
        with self._ray_output.open("ab") as output:  # how to use a cluster that is gone when the run ends
            return self.start(*command, output=output)

    def ray_said(self, lines: int = 5) -> str:
        """Return the end of what ``ray start`` has printed, to be put after a message."""
        text = self._ray_output.read_text(errors="replace") if self._ray_output.exists() else ""
        last = [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]
        return "\n".join([":", *last]) if last else ""

    def stop(self, *, keep_logs: bool) -> None:
        """End what was started here, the last first, and kill what does not end; then remove Ray's folder.

        Args:
            keep_logs: Leave the logs of Ray and its workers, and say where they are.
        """
        for process in reversed(self._started):
            process.terminate()
            if poll_until(lambda process=process: process.poll() is not None, leave_seconds()):
                continue
            child.kill_group(process)
        for folder in self._temporary.values():
            shutil.rmtree(folder, ignore_errors=True)
        session = self.folder / "ray/session_latest"
        if not keep_logs or not session.exists():
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        for path in session.iterdir():  # among them the objects that Ray has spilled
            if path.name != "logs":
                shutil.rmtree(path, ignore_errors=True)
        print(f"launch: the logs of Ray on node {self.rank} are in {session / 'logs'}", file=sys.stderr)


def gloo_interface(ip: str) -> str:
    """Return the interface that gloo must be told, or nothing where it finds a usable one itself.

    It takes the address to which the machine's own name resolves. With ``127.0.1.1 name`` in /etc/hosts, which Debian
    writes, other nodes cannot reach that one.

    Args:
        ip: This node's address towards the other nodes; a loopback address if there are none.
    """
    if ip.startswith("127."):
        return ""
    with suppress(OSError):
        if not socket.gethostbyname(socket.gethostname()).startswith("127."):
            return ""
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, addresses in interfaces if any(each.address == ip for each in addresses)), "")


def ray_options(environment: Mapping[str, str]) -> tuple[dict[str, float], list[str]]:
    """Split ``COMPRL_RAY_START`` into resources, of which ``ray start`` takes only those that come last, and the rest.

    Raises:
        ValueError: If a quote is not closed.
        SystemExit: With 2 and a message, if the resources are no JSON object.
    """
    parser = argparse.ArgumentParser(
        prog="COMPRL_RAY_START", usage="options of `ray start`", add_help=False, allow_abbrev=False
    )
    parser.add_argument("--resources", type=_resources, default={}, metavar="JSON")
    try:
        given = shlex.split(environment.get("COMPRL_RAY_START", ""))
    except ValueError as error:
        raise ValueError(f"COMPRL_RAY_START: {error}") from error
    found, others = parser.parse_known_args(given)
    return found.resources, others


def _resources(text: str) -> dict[str, float]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f'{text!r} is no JSON object, such as {{"big": 1}}')
    return found
