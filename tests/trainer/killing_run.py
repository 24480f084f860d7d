"""Training run whose extractor loses a server at the worst moment: ``python killing_run.py PROBE_FILE override …``.

In step ``KILL_STEP``, with questions being answered and an update pending, which the script holds back until then.
Where both models take turns on the same slots, updates take place in every step and are not held back. The small actor
hardly ever asks, so the script asks as a rollout does, through ``Guidance``.
"""

import asyncio
import json
import os
import signal
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from verl_comprl import train

KILL_STEP = 4
QUESTIONS = 16


def _pid(_: Any) -> int:
    return os.getpid()


async def _ask(guidance: Any) -> tuple[str, float]:
    started = time.perf_counter()
    answer = await guidance.ask("Where do I go?", task="", environment="", read_only=False, timeout=60)
    return answer.status, time.perf_counter() - started


async def kill_while_asked(manager: Any, server_pid: int) -> dict[str, list[tuple[str, float]]]:
    """Kill the server a moment after many questions; returns status and seconds of each answer, and of later ones."""
    from verl_comprl.rollout.guidance import Guidance

    guidance = Guidance(manager)
    alone = await _ask(guidance)
    asking = [asyncio.create_task(_ask(guidance)) for _ in range(QUESTIONS)]
    await asyncio.sleep(alone[1] / 4)
    os.kill(server_pid, signal.SIGKILL)
    return {
        "before": [alone],
        "during": await asyncio.gather(*asking),
        "after": [await _ask(guidance) for _ in range(QUESTIONS)],
    }


def kill_server(trainer: Any, file: Path) -> None:
    """Let samples gather, kill the server in ``KILL_STEP``, then let the learner find out."""
    import ray

    runtime = trainer.experience_runtime
    server, *_ = runtime.extractor.servers.server_handles
    pid: Any = ray.get(server.__ray_call__.remote(_pid))
    takes_turns = trainer.comprl.shares_slots  # in the thread that makes the steps
    with nullcontext() if takes_turns else runtime.extractor.lock:  # the learner waits for it
        while trainer.global_steps < KILL_STEP:
            time.sleep(0.02)
        metrics: Any = ray.get(runtime.manager.metrics.remote())
        answers = asyncio.run(kill_while_asked(runtime.manager, pid))
        seen = {"step": trainer.global_steps, "samples": metrics["buffer/samples"], "answers": answers}
    file.write_text(json.dumps(seen))


def main() -> int:
    from verl_comprl.trainer.extractor import learner
    from verl_comprl.trainer.trainer import ComplementaryTrainerMixin

    # Updates may begin after the checkpoint of KILL_STEP only, and the run ends a few seconds later.
    learner.FIRST_BACKOFF = 1.0
    begin, file, overrides = ComplementaryTrainerMixin.on_step_begin, Path(sys.argv[1]), sys.argv[2:]

    def on_step_begin(self: Any) -> None:
        begin(self)
        if self.global_steps == KILL_STEP - 2:
            threading.Thread(target=kill_server, args=(self, file), daemon=True).start()

    ComplementaryTrainerMixin.on_step_begin = on_step_begin
    return train.main(overrides)


if __name__ == "__main__":
    train.prepare_environment()
    sys.exit(main())
