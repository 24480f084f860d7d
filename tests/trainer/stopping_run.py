"""Training run whose actor's server stops when step 2 begins: ``python stopping_run.py PROBE_FILE override …``.

SIGSTOP, as a machine that hangs; the file gets the process's id, and whoever reads it may let the server go on. From
then on the watchdog has the patience of ``COMPRL_TEST_END_AFTER`` seconds, if that is set: a start takes longer.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from verl_comprl import train

PATIENCE = "COMPRL_TEST_END_AFTER"


def _pid(_: Any) -> int:
    return os.getpid()


def main() -> int:
    from verl_comprl.trainer.trainer import ComplementaryTrainerMixin
    from verl_comprl.trainer.watchdog import watching

    class Patient(watching.Watchdog):
        def hung(self, stalled: Any) -> Any:
            if file.exists():
                self._end_after = float(os.environ.get(PATIENCE, self._end_after))
            return super().hung(stalled)

    watching.Watchdog = Patient
    begin, file, overrides = ComplementaryTrainerMixin.on_step_begin, Path(sys.argv[1]), sys.argv[2:]

    def on_step_begin(self: Any) -> None:
        import ray

        begin(self)
        if self.global_steps == 2:
            server, *_ = self.llm_server_manager.server_handles
            pid: Any = ray.get(server.__ray_call__.remote(_pid))
            os.kill(pid, signal.SIGSTOP)
            file.write_text(str(pid))

    ComplementaryTrainerMixin.on_step_begin = on_step_begin
    return train.main(overrides)


if __name__ == "__main__":
    train.prepare_environment()
    sys.exit(main())
