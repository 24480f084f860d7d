"""Training run that gets SIGTERM while it waits for rollouts: ``python interrupted_run.py PROBE_FILE override …``.

In step 3, before its last local update. The rollouts count as unfinished until the signal, as with a slow environment:
otherwise they may be there before they are asked for. The file gets the moment of the signal.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from verl_comprl import train

STEP = 3


def main() -> int:
    from verl_comprl.trainer.trainer import ComplementaryTrainerMixin

    begin, file = ComplementaryTrainerMixin.on_train_begin, Path(sys.argv[1])

    def on_train_begin(self: Any) -> None:
        buffer = self.replay_buffer
        wait, has_enough = buffer._wait_for_next_poll, buffer._has_enough_samples

        def is_here() -> bool:
            return self.global_steps == STEP and self.local_trigger_step == self.parameter_sync_step - 1

        def wait_and_signal(*arguments: Any) -> Any:
            if is_here() and not file.exists():
                file.write_text(str(time.time()))
                os.kill(os.getpid(), signal.SIGTERM)
            return wait(*arguments)

        buffer._wait_for_next_poll = wait_and_signal
        buffer._has_enough_samples = lambda *arguments: not is_here() and has_enough(*arguments)
        begin(self)

    ComplementaryTrainerMixin.on_train_begin = on_train_begin
    return train.main(sys.argv[2:])


if __name__ == "__main__":
    train.prepare_environment()
    sys.exit(main())
