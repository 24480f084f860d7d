"""Training run that tells who its servers are: ``python named_run.py PROBE_FILE override …``.

When step 1 begins, the file gets the process ids of the models' servers, of the actor's engine, of what plays and
rewards episodes, and of TransferQueue by name, as the watchdog calls them.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from verl_comprl import train


def _pid(_: Any) -> int:
    return os.getpid()


def main() -> int:
    from verl_comprl.platform.ray_session import queue_actors
    from verl_comprl.trainer.trainer import ComplementaryTrainerMixin
    from verl_comprl.trainer.watchdog.processes import (
        actor_servers,
        agent_loop_workers,
        engine_workers,
        extractor_servers,
        reward_workers,
    )

    begin, file, overrides = ComplementaryTrainerMixin.on_step_begin, Path(sys.argv[1]), sys.argv[2:]

    def on_step_begin(self: Any) -> None:
        import ray

        begin(self)
        if not file.exists():
            models = actor_servers(self) | extractor_servers(self) | engine_workers(self)
            loops = agent_loop_workers(self.agent_loop_manager) | reward_workers(self)
            workers = models | loops | queue_actors()
            pids = {name: ray.get(worker.__ray_call__.remote(_pid)) for name, worker in workers.items()}
            aside = file.with_suffix(".new")
            aside.write_text(json.dumps(pids))
            aside.replace(file)

    ComplementaryTrainerMixin.on_step_begin = on_step_begin
    return train.main(overrides)


if __name__ == "__main__":
    train.prepare_environment()
    sys.exit(main())
