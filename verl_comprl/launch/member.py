"""Every node but the first: joins the cluster, stays until the first says that the run is over, and leaves."""

import json
import os
import signal
import sys
from contextlib import suppress

from verl_comprl.errors import INTERRUPTED
from verl_comprl.launch.limits import LOST, LaunchError, join_seconds, poll_until, reason
from verl_comprl.launch.node import Node
from verl_comprl.launch.store import TOKEN, RunStore
from verl_comprl.launch.versions import first_difference, installed_versions
from verl_comprl.platform.signals import stop_signals

_PATIENCE = 3
"""The first node waits for others up to twice, each for ``join_seconds``, before it says anything or gives up."""


def follow(store: RunStore) -> int:
    """Join, and return the run's exit code when it is over.

    Signals are ignored: the first node gets them too and ends the run, which may take it a checkpoint.
    """
    for number in stop_signals():
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which children would inherit
    node, code = None, LOST
    try:
        store.set("seen", store.first_ip)
        store.add("here", 1)
        node = Node(store.rank, store.nodes, store.ip, os.environ)
        code = _stay(store, node)
    except (LaunchError, OSError) as error:
        why = reason(error, store.rank)
        print(f"launch: {why}", file=sys.stderr)
        with suppress(LaunchError):
            store.set("lost", why)
    finally:
        if node is not None:
            node.stop(keep_logs=code not in (0, INTERRUPTED))
        with suppress(LaunchError):
            store.add("left", 1)
    return code


def _stay(store: RunStore, node: Node) -> int:
    """Join and wait for the exit code.

    The first node has the limits and sets the code in any case; if it dies, so does its store, unless torchrun hosts
    it: then it may be in another attempt by now. So what it says first is not waited for without end.
    """
    seconds = _PATIENCE * join_seconds()
    published = poll_until(lambda: store.get("head") or store.get("end"), seconds)
    if not published:
        raise LaunchError(f"node {store.rank}: the first node has not said within {seconds:g} s where its Ray is")
    if ended := store.get("end"):
        return int(ended)
    head = json.loads(published)
    if difference := first_difference(installed_versions(), head["versions"]):
        raise LaunchError(f"node {store.rank}: {difference}")
    # One that is set to nothing is not set, as for Ray.
    if (token := head.get("token", node.environment.get(TOKEN) or None)) is None:
        raise LaunchError(f"node {store.rank}: {TOKEN} is not set here, but on the first node; set it on all nodes")
    node.environment |= {"RAY_AUTH_MODE": "token", TOKEN: token}
    ray = node.start_ray("--address", head["address"])

    def end() -> str:
        nonlocal ray
        code = store.get("end")
        if not code and ray.poll() is not None:
            if store.get("all"):
                raise LaunchError(f"Ray on node {store.rank} ended with {ray.returncode}{node.ray_said()}")
            # Ray gives up on its start sooner than a busy machine needs; how long this may continue is the first node's
            # decision.
            ray = node.start_ray("--address", head["address"])
        return code

    return int(poll_until(end))
