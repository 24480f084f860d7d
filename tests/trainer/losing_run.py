"""Training run that loses one of its processes in a phase of its second step: ``python losing_run.py FILE override …``.

The environment variable ``COMPRL_TEST_LOSS`` has the phase and the process's name, as the watchdog calls it, with a
colon between them. When the process is killed, the file gets ``true`` if the phase has not ended by then.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from named_run import named_processes, write_at_once

from verl_comprl import train

LOSS = "COMPRL_TEST_LOSS"
SECONDS = 0.02
"""From the begin of the phase to the kill."""
PHASES = {
    "log-probs": ("_compute_old_log_prob",),
    "update": ("_update_actor",),
    "checkpoint": ("_save_checkpoint",),
    "weight sync": ("checkpoint_manager.update_weights", "standalone_checkpoint_manager.update_weights"),
}
"""Methods of a trainer by phase, of which the first that is called begins it."""


def main() -> int:
    from verl_comprl.trainer.trainer import ComplementaryTrainerMixin

    phase, _, name = os.environ[LOSS].partition(":")
    begin, file, overrides = ComplementaryTrainerMixin.on_step_begin, Path(sys.argv[1]), sys.argv[2:]
    steps = 0
    running, has_begun = threading.Event(), threading.Event()

    def on_step_begin(self: Any) -> None:
        nonlocal steps
        begin(self)
        steps += 1
        if steps == 2:
            pid = named_processes(self)[name]
            for path in PHASES[phase]:
                owner, _, method = path.rpartition(".")
                if (owned := getattr(self, owner, None) if owner else self) is not None:
                    setattr(owned, method, losing(getattr(owned, method), pid))

    def losing(work: Callable[..., Any], pid: int) -> Callable[..., Any]:
        def lose_first(*given: Any, **named: Any) -> Any:
            if has_begun.is_set():
                return work(*given, **named)
            has_begun.set()
            running.set()
            threading.Timer(SECONDS, kill, (pid,)).start()
            try:
                return work(*given, **named)
            finally:
                running.clear()

        return lose_first

    def kill(pid: int) -> None:
        in_phase = running.is_set()
        os.kill(pid, signal.SIGKILL)
        write_at_once(file, in_phase)

    ComplementaryTrainerMixin.on_step_begin = on_step_begin
    return train.main(overrides)


if __name__ == "__main__":
    train.prepare_environment()
    sys.exit(main())
