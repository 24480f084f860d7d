"""Identity of this process's Ray job, and its end."""

from typing import Any

import psutil
import ray

_GRACE_SECONDS = 10.0
"""Seconds that Ray's processes may take to end after shutdown."""


def ray_job() -> str:
    """Return what tells this process's Ray job from all others.

    The number of a job is not enough: a Ray that is started after another one was shut down counts from 1 again.
    """
    context = ray.get_runtime_context()
    return f"{context.get_node_id()} {context.get_job_id()}"


def foreign_transfer_queue() -> bool:
    """Return whether this Ray cluster has a TransferQueue that another Ray job has made."""
    try:
        controller: Any = ray.get_actor("TransferQueueController", namespace="transfer_queue")
    except ValueError:  # Ray knows no actor of that name
        return False
    return controller._ray_actor_id.job_id.hex() != ray.get_runtime_context().get_job_id()


def end_ray() -> None:
    """Shut Ray down, and with it whatever its workers have started, if this process has started Ray.

    Ray kills process groups of its workers, such as a server with its engine, unless its own daemon ends first: then
    the engine would stay, with its memory.
    """
    daemons = [child for child in psutil.Process().children() if child.name() == "raylet"]
    started = [process for daemon in daemons for process in daemon.children(recursive=True)]
    ray.shutdown()
    _, left = psutil.wait_procs(started, timeout=_GRACE_SECONDS)
    for process in left:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
