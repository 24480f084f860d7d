"""Tells this process's Ray job and TransferQueue from those of others, and ends them."""

import atexit
from contextlib import suppress
from typing import Any

import psutil
import ray
import transfer_queue as tq
from transfer_queue import interface

from verl_comprl.errors import WaitTimeout
from verl_comprl.platform.temporary import note_sockets_of_ray, remove_folders
from verl_comprl.platform.waiting import call_within

_GRACE_SECONDS = 10.0
"""Seconds that Ray's processes may take to end after shutdown."""

_SHUTDOWN_SECONDS = 60.0
"""Seconds that Ray may take to shut down; it waits for minutes where its ``gcs_server`` does not answer."""

_DAEMONS = ("raylet", "gcs_server")

_QUEUE_GLOBALS = ("_TQ_CONTROLLER", "_TQ_STORAGE")
"""Where TransferQueue keeps its actors; it has no other way to ask for those of its storage."""

_QUEUE_SECONDS = 30.0
"""Seconds that TransferQueue may take to close."""


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


def queue_actors() -> dict[str, Any]:
    """Return the processes of TransferQueue by name, as far as this process knows them."""
    controller, storages = (getattr(interface, name, None) for name in _QUEUE_GLOBALS)
    units = (storages or {}).get("SimpleStorage", {})
    found = {f"storage unit {number} of TransferQueue": unit for number, unit in enumerate(units.values())}
    return found | ({"TransferQueue": controller} if controller else {})


def close_transfer_queue() -> None:
    """End TransferQueue, of which this process has a client; one that hangs is left to the end of Ray."""
    with suppress(WaitTimeout):
        call_within(tq.close, _QUEUE_SECONDS, "TransferQueue to close")


def end_ray() -> None:
    """Shut Ray down, and with it whatever its workers have started, if this process has started Ray.

    Ray kills process groups of its workers, such as a server with its engine, unless its own daemon ends first: then
    the engine would stay, with its memory. Sockets that are left in the file system are removed. A Ray that hangs is
    killed if this process has started it, and left otherwise.
    """
    daemons: list[psutil.Process] = []
    started: list[psutil.Process] = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # another child that ends just now
            if child.name() in _DAEMONS:
                daemons.append(child)
                started += child.children(recursive=True)
    note_sockets_of_ray()
    try:
        call_within(ray.shutdown, _SHUTDOWN_SECONDS, "Ray to shut down")
    except WaitTimeout as error:
        print(error, flush=True)  # to the log
        atexit.unregister(ray.shutdown)  # which would wait once more when this process exits
        _kill([*daemons, *started])
    _, left = psutil.wait_procs(started, timeout=_GRACE_SECONDS)
    _kill(left)
    remove_folders()


def kill_descendants() -> None:
    """Kill every process that this one has started, and what they have started: for a process that cannot end well."""
    note_sockets_of_ray()
    _kill(psutil.Process().children(recursive=True))
    remove_folders()


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
