"""Counts what is under way in the other processes of a run when a step ends; what grows for ever has been leaked."""

from typing import Any

import ray
from ray.exceptions import RayError

from verl_comprl.platform.under_way import under_way
from verl_comprl.trainer.watchdog.processes import (
    actor_servers,
    agent_loop_workers,
    experience_manager,
    extractor_servers,
)


def unfinished_requests(server: Any) -> int:
    """Return how many requests a vLLM server has not finished; to be run in the server's process."""
    processor = getattr(getattr(server, "engine", None), "output_processor", None)  # none on a replica's further nodes
    return 0 if processor is None else processor.get_num_unfinished_requests()


def work_under_way(process: object) -> int:
    """Return how many pieces of work are under way in a process of ours; to be run there."""
    return len(under_way(process))


class UnderWayCount:
    """Asks at the end of each step, and reads at the end of the next one, so that no step waits for an answer."""

    def __init__(self) -> None:
        """Ask nobody yet."""
        self._asked: dict[str, list[Any]] = {}

    def metrics(self, trainer: Any) -> dict[str, float]:
        """Return the counts of the end of the step before, and ask for those of now.

        Args:
            trainer: The run's.
        """
        counts = {f"comprl/under_way/{kind}": _sum(references) for kind, references in self._asked.items()}
        processes = {
            "episodes": (agent_loop_workers(trainer.agent_loop_manager), work_under_way),
            "manager": (experience_manager(trainer), work_under_way),
            "actor_requests": (actor_servers(trainer), unfinished_requests),
            "extractor_requests": (extractor_servers(trainer), unfinished_requests),
        }
        self._asked = {
            kind: [process.__ray_call__.remote(count) for process in asked.values()]
            for kind, (asked, count) in processes.items()
            if asked
        }
        return {name: count for name, count in counts.items() if count is not None}


def _sum(references: list[Any]) -> float | None:
    """Return the sum of the answers; None if one is missing."""
    answered, missing = ray.wait(references, num_returns=len(references), timeout=0)
    if missing:
        return None
    try:
        return float(sum(ray.get(answered)))
    except RayError:  # one has died, which others notice and tell
        return None
