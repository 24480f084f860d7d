"""Processes of a run by name, as far as they have started."""

from collections.abc import Iterable
from typing import Any

MANAGER = "experience manager"


def agent_loop_workers(loops: Any) -> dict[str, Any]:
    """Return the processes that play episodes.

    Args:
        loops: verl's ``AgentLoopManager``; None before there is one.
    """
    workers = getattr(loops, "agent_loop_workers", ())
    return {f"agent loop worker {number}": worker for number, worker in enumerate(workers)}


def reward_workers(trainer: Any) -> dict[str, Any]:
    """Return the processes that compute rewards, if there are any."""
    workers = trainer.reward_loop_manager.reward_loop_worker_handles or ()
    return {f"reward worker {number}": worker for number, worker in enumerate(workers)}


def engine_workers(trainer: Any) -> dict[str, Any]:
    """Return the processes of the actor's engine."""
    return {
        f"worker {number} of the actor's engine": each for number, each in enumerate(trainer.actor_rollout_wg.workers)
    }


def actor_servers(trainer: Any) -> dict[str, Any]:
    """Return the actor's servers: those on the trainer's slots, then those with slots of their own."""
    names = ("checkpoint_manager", "standalone_checkpoint_manager")
    return _servers("the actor's", (getattr(trainer, name, None) for name in names))


def receivers(trainer: Any) -> dict[str, Any]:
    """Return the processes that take new weights for servers of the actor with slots of their own."""
    replicas = getattr(getattr(trainer, "standalone_checkpoint_manager", None), "replicas", ())
    found = [worker for replica in replicas for worker in replica.workers]
    return {f"worker {number} of the actor's servers": worker for number, worker in enumerate(found)}


def extractor_servers(trainer: Any) -> dict[str, Any]:
    """Return those of the extractor's servers that have not died, as far as is known."""
    extractor = getattr(trainer.experience_runtime, "extractor", None)
    return _servers("the extractor's", (getattr(extractor, "serving", None),))


def experience_manager(trainer: Any) -> dict[str, Any]:
    """Return the experience manager, if the run has one."""
    found = getattr(trainer.experience_runtime, "manager", None)
    return {} if found is None else {MANAGER: found}


def _servers(whose: str, owners: Iterable[Any]) -> dict[str, Any]:
    found = [server for owner in owners if owner for replica in owner.replicas for server in replica.servers]
    return {f"{whose} server {number}": server for number, server in enumerate(found)}
