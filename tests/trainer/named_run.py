"""Training run that tells who its servers are: ``python named_run.py PROBE_FILE override …``.

When step 1 begins, the file gets the process ids of :func:`named_processes`.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from verl_comprl import train


def _pid(_: Any) -> int:
    return os.getpid()


def named_processes(trainer: Any) -> dict[str, int]:
    """Return the ids of a run's processes by name, as the watchdog calls them.

    Those of the models' servers, of the actor's engine, of what plays and rewards episodes, and of TransferQueue.
    """
    import ray

    from verl_comprl.platform.ray_session import queue_actors
    from verl_comprl.trainer.watchdog.processes import (
        actor_servers,
        agent_loop_workers,
        engine_workers,
        extractor_servers,
        reward_workers,
    )

    models = actor_servers(trainer) | extractor_servers(trainer) | engine_workers(trainer)
    loops = agent_loop_workers(trainer.agent_loop_manager) | reward_workers(trainer)
    workers = models | loops | queue_actors()
    return {name: ray.get(worker.__ray_call__.remote(_pid)) for name, worker in workers.items()}


def write_at_once(file: Path, value: Any) -> None:
    """Write JSON that a reader finds whole or not at all."""
    aside = file.with_suffix(".new")
    aside.write_text(json.dumps(value))
    aside.replace(file)


def main() -> int:
    from verl_comprl.trainer.trainer import ComplementaryTrainerMixin

    begin, file, overrides = ComplementaryTrainerMixin.on_step_begin, Path(sys.argv[1]), sys.argv[2:]

    def on_step_begin(self: Any) -> None:
        begin(self)
        if not file.exists():
            write_at_once(file, named_processes(self))

    ComplementaryTrainerMixin.on_step_begin = on_step_begin
    return train.main(overrides)


if __name__ == "__main__":
    train.prepare_environment()
    sys.exit(main())
