"""Breaks a run from outside: kills or stops its processes, found by the marker of their environment."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator

import psutil
from running import MARKER, Run


def processes(run: Run, matches: Callable[[psutil.Process, str], bool]) -> list[psutil.Process]:
    """Return the processes of a run that match, by process and command line."""
    return [process for process, command in _all(run) if matches(process, command)]


def _all(run: Run) -> Iterator[tuple[psutil.Process, str]]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.environ().get(MARKER) == run.marker and process.status() != psutil.STATUS_ZOMBIE:
                yield process, " ".join(process.cmdline())


def manager(run: Run) -> list[psutil.Process]:
    """The experience manager."""
    return processes(run, lambda _, command: command.startswith("ray::_ManagerActor"))


def environments(run: Run) -> list[psutil.Process]:
    """Processes with one environment each: children of a fork server."""
    return processes(
        run, lambda process, command: "fork_server" in command and "fork_server" in _command(process.parent())
    )


def playing(run: Run) -> list[psutil.Process]:
    """Processes with an environment in which something is going on: others are lent to no episode."""
    before = {process: _seconds(process) for process in environments(run)}
    time.sleep(0.2)
    return [process for process, seconds in before.items() if _seconds(process) > seconds]


def _seconds(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.NoSuchProcess):
        return sum(process.cpu_times()[:2])
    return 0.0


def _command(process: psutil.Process | None) -> str:
    return " ".join(process.cmdline()) if process else ""


def kill(found: list[psutil.Process]) -> None:
    """Kill processes that must be there."""
    assert found
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@contextlib.contextmanager
def stopped(found: list[psutil.Process]) -> Iterator[None]:
    """Let processes hang during a block."""
    assert found
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


def wait(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Wait until ``condition`` holds, at most ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} took longer than {seconds:g} s"
        time.sleep(0.05)
