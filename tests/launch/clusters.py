"""Runs of the launcher under torchrun, on one machine: as processes on 127.0.0.1, or in network namespaces."""

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from verl_comprl.platform.child import free_port

ROOT = Path(__file__).parents[2]
MARKER = "COMPRL_TEST_RUN"


IPS = ("10.77.0.1", "10.77.0.2")
"""Addresses of the two namespaces."""


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextmanager
def two_namespaces() -> Iterator[tuple[tuple[str, ...], ...]]:
    """Make two network namespaces with a cable between them; gives nothing where that is not allowed."""
    names = tuple(f"comprl{node}-{os.getpid()}" for node in range(2))
    ends = ("veth0", "veth1")  # each is inside of its namespace
    made: list[str] = []
    try:
        with suppress(OSError, subprocess.CalledProcessError):
            for name in names:
                _ip("netns", "add", name)
                made.append(name)
            _ip("link", "add", ends[0], "netns", names[0], "type", "veth", "peer", "name", ends[1], "netns", names[1])
            for name, end, address in zip(names, ends, IPS, strict=True):
                _ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
                _ip("-n", name, "link", "set", "lo", "up")
                _ip("-n", name, "link", "set", end, "up")
                _ip("-n", name, "route", "add", "default", "dev", end)  # by which libraries find their own address
            made.append("cable")
        yield tuple(("ip", "netns", "exec", name) for name in names) if made[2:] else ()
    finally:
        for name in made[:2]:
            _ip("netns", "del", name)


class Cluster:
    """One ``torchrun`` per node; everything it starts carries its marker in the environment."""

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        *,
        within: Sequence[Sequence[str]] = ((), ()),
        address: str,
        restarts: int = 0,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            folder: For the output of the nodes.
            command: What torchrun runs.
            within: For each node the command that enters its network namespace.
            address: Of the first node.
            restarts: torchrun's ``--max-restarts``.
            variables: Of all nodes.
        """
        self.folder, self.command, self.within, self.address = folder, list(command), within, address
        self.marker, self.port = uuid.uuid4().hex, free_port("127.0.0.1")
        self.variables, self.restarts = dict(variables or {}), restarts
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, node: int) -> None:
        """Start a node's torchrun."""
        where = ["--nnodes", str(len(self.within)), "--node-rank", str(node), "--nproc-per-node", "1"]
        where += ["--master-addr", self.address, "--master-port", str(self.port)]
        where += ["--max-restarts", str(self.restarts)]
        environment = os.environ | {MARKER: self.marker, "PYTHONPATH": str(ROOT), "SLURM_JOB_ID": "1"} | self.variables
        with self.output(node).open("wb") as output:
            self.nodes[node] = subprocess.Popen(
                [*self.within[node], sys.executable, "-m", "torch.distributed.run", *where, *self.command],
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=output,
            )

    def output(self, node: int) -> Path:
        return self.folder / f"node-{node}.txt"

    def text(self) -> str:
        return "\n".join(
            f"--- {file.name}\n{file.read_text()[-4000:]}" for file in sorted(self.folder.glob("node-*.txt"))
        )

    def wait(self, seconds: float) -> list[int]:
        """Return the exit codes of the nodes' torchruns."""
        deadline = time.monotonic() + seconds
        for process in self.nodes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0))
            assert process.poll() is not None, f"not over after {seconds} s:\n{self.text()}"
        return [self.nodes[node].returncode for node in sorted(self.nodes)]

    def launcher_codes(self, seconds: float) -> list[int]:
        """Return what the launchers returned, -1 for none; torchrun itself makes 1 of any failure."""
        codes = self.wait(seconds)
        texts = [self.output(node).read_text() for node in sorted(self.nodes)]
        found = [re.findall(r"launcher of this node returned (\d+)", text) for text in texts]
        launchers = [int(lines[-1]) if lines else -1 for lines in found]
        for code, launcher in zip(codes, launchers, strict=True):
            assert launcher == -1 or (code == 0) == (launcher == 0), self.text()
        return launchers

    def wait_until(self, condition: Callable[[], object], seconds: float = 300) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert all(process.poll() is None for process in self.nodes.values()), self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.2)

    def processes(self, name: str = "") -> list[psutil.Process]:
        """Return the processes of this run whose command line contains ``name``."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARKER) == self.marker and process.status() != psutil.STATUS_ZOMBIE:
                    found += [process] if name in " ".join(process.cmdline()) else []
        return found

    def of_node(self, node: int, name: str) -> psutil.Process:
        """Return the process of a node whose command line contains ``name`` and that is nearest to its torchrun."""
        descendants = psutil.Process(self.nodes[node].pid).children(recursive=True)
        return next(process for process in descendants if name in " ".join(process.cmdline()))

    def left_after(self, seconds: float) -> list[str]:
        """Return the names of the processes of this run that are still there after a while."""
        deadline = time.monotonic() + seconds
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.5)
        return [f"{process.pid} {' '.join(process.cmdline())[:200]}" for process in left]

    def kill(self) -> None:
        """End whatever is left."""
        for process in self.processes():
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
