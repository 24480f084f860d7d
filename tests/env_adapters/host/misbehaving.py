"""Environment that fails on command, for tests of the host."""

import os
import shlex
import subprocess
import sys
import threading
import time
from typing import Any

from env_adapters import TextEnvironment, Transition
from env_adapters.host.wire import encode

released = threading.Event()
"""Ends what waits in this process."""


IS_SOCKET = """
import os, stat
def is_socket(number):
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:
        return False
"""


class Unreadable(Exception):
    """Raises where its text is made."""

    def __str__(self) -> str:
        raise SystemExit("no text")


class Misbehaving(TextEnvironment):
    """Actions: fine, raise, hang (forever), wait (until released), sleep (0.3 s), exit, die, pid, huge; bad numbers.

    And unreadable (an exception that cannot be shown), start (a program), fork (itself), leave (a fork behind),
    abandon (a program), forge (an answer to the host, by a program).
    """

    instructions = goal = "Misbehave."
    task_id = "misbehaving"

    def __init__(self, *, max_turns: int = 30, fails: str = "") -> None:
        super().__init__(max_turns=max_turns)
        self.admissible_actions = []
        self._fails = fails
        if fails == "make":
            raise ValueError("cannot be created")

    def close(self) -> None:
        if self._fails == "close":
            time.sleep(1000)
        if self._fails == "closing":
            raise OSError("cannot be closed")

    def _start(self, seed: int, options: dict[str, Any]) -> str:
        if self._fails == "reset":
            time.sleep(1000)
        return f"seed {seed}"

    def _read(self, action_text: str) -> str:
        return action_text

    def _play(self, action: str) -> Transition:
        match action:
            case "raise":
                raise RuntimeError("raised on command")
            case "hang":
                while True:
                    pass
            case "sleep":
                time.sleep(0.3)
            case "wait":
                released.wait()
            case "exit":
                raise SystemExit
            case "die":
                os.kill(os.getpid(), 11)
            case "unreadable":
                raise Unreadable
            case "start":
                return Transition(str(subprocess.Popen(["sleep", "600"]).pid))
            case "fork":
                os.fork()
            case "leave":
                if os.fork():
                    os._exit(1)
                time.sleep(600)
            case "abandon":
                os.system("sleep 600 &")
                os._exit(1)
            case "forge":
                forged = encode({"result": ["forged", 1.0, False, False, {}]})
                command = f"[os.write(n, {forged!r}) for n in range(3, 64) if is_socket(n)]"
                os.system(f"{sys.executable} -c {shlex.quote(IS_SOCKET + command)}")
            case "pid":
                return Transition(str(os.getpid()))
            case "nan" | "inf" | "1e39" | "-3e38":
                return Transition(action, reward=float(action))
            case "many":
                return Transition(action, reward=10**400)
            case "much":
                return Transition(action, reward="much")  # type: ignore[arg-type]
            case "unscored":
                return Transition(action, score=float("nan"))
            case "huge":
                return Transition("\udc80x" * 2**20)
        return Transition(action)


class Sharing(Misbehaving):
    """The same environment, but allowed to share a process."""

    thread_safe = True
