"""verl's load balancer of a model, which the runs of a sweep use one after the other."""

from collections.abc import Sequence
from typing import Any

from verl.workers.rollout.llm_server import LLMServerManager

from verl_comprl.platform.waiting import wait_for

BALANCER_SECONDS = 30.0
"""Limit of a call to it."""


def forget_requests(servers: LLMServerManager, replicas: Sequence[Any]) -> None:
    """Let it count from nothing, with those servers that are left.

    Requests of processes that were killed, as agent loops are at the end of a run, are never released: a server that
    had many of them would get no requests of the next runs.

    Args:
        servers: The model's servers.
        replicas: Those that have not died.
    """
    balancer: Any = servers.global_load_balancer
    known = wait_for(balancer.get_all_servers.remote(), BALANCER_SECONDS, "the load balancer to list its servers")
    emptying = [
        balancer.remove_servers.remote(known),
        balancer.add_servers.remote({replica.server_address: replica.server_handle for replica in replicas}),
    ]
    wait_for(emptying, BALANCER_SECONDS, "the load balancer to forget requests")
