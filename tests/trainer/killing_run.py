"""Training run whose extractor loses its server at the worst moment: ``python killing_run.py PROBE_FILE override …``.

In step ``KILL_STEP``, while rollouts ask and with an update pending, which the script holds back until then.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from verl_comprl import train

KILL_STEP = 4
PATIENCE_SECONDS = 240


def _pid(_: Any) -> int:
    return os.getpid()


def _asked(metrics: dict[str, float]) -> float:
    return sum(value for name, value in metrics.items() if name.startswith("answers/"))


def kill_server(trainer: Any, file: Path) -> None:
    """Kill it when a rollout of ``KILL_STEP`` has asked and a batch is waiting; write down what was seen then."""
    import ray

    runtime = trainer.experience_runtime
    (server,) = runtime.extractor.servers.server_handles
    pid = ray.get(server.__ray_call__.remote(_pid))
    with runtime.extractor.lock:  # the learner waits for it, so that samples gather
        asked, deadline = 0.0, time.monotonic() + 3600
        while True:
            step, metrics = trainer.global_steps, ray.get(runtime.manager.metrics.remote())
            if step < KILL_STEP:
                asked, deadline = _asked(metrics), time.monotonic() + PATIENCE_SECONDS
            elif time.monotonic() > deadline or _asked(metrics) > asked:
                break
            time.sleep(0.02)
        os.kill(pid, signal.SIGKILL)
    seen = {"step": step, "asked": _asked(metrics) - asked, "samples": metrics["buffer/samples"]}
    file.write_text(json.dumps(seen | {"updates": runtime.extractor.weight_version}))


def main() -> int:
    from verl_comprl.trainer.trainer import ComplementaryTrainerMixin

    begin = ComplementaryTrainerMixin.on_step_begin

    def on_step_begin(self: Any) -> None:
        begin(self)
        if self.global_steps == KILL_STEP - 2:
            threading.Thread(target=kill_server, args=(self, Path(sys.argv[1])), daemon=True).start()

    ComplementaryTrainerMixin.on_step_begin = on_step_begin
    return train.main(sys.argv[2:])


if __name__ == "__main__":
    train.prepare_environment()
    sys.exit(main())
