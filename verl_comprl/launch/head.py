"""The first node: Ray's head, the training, and the end of the run on all nodes."""

import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType

from verl_comprl.errors import INTERRUPTED
from verl_comprl.launch.limits import LOST, LaunchError, join_seconds, leave_seconds, poll_until, reason
from verl_comprl.launch.node import Node
from verl_comprl.launch.store import TOKEN, RunStore
from verl_comprl.launch.versions import installed_versions
from verl_comprl.platform.child import Process, free_port
from verl_comprl.platform.signals import stop_signals


class _Interrupted(Exception):
    """A signal came before the training had begun."""


def lead(store: RunStore, command: Sequence[str]) -> int:
    """Form the cluster, run ``command`` (arguments of Python) on it, end the run on all nodes and return its exit code.

    Args:
        store: Shared with the other nodes.
        command: Gets the signals to stop that this process gets; its code is the run's.
    """
    node, code = None, LOST
    _on_signals(_interrupt)
    try:
        node = Node(store.rank, store.nodes, _address(store), os.environ)
        ray = _start_head(store, node)
        code = _run(store, node, ray, command)
    except _Interrupted:
        code = INTERRUPTED
    except (LaunchError, OSError) as error:
        print(f"launch: {reason(error, store.rank)}", file=sys.stderr)
    finally:
        _on_signals(lambda *_: None)
        with suppress(LaunchError):
            store.set("end", str(code))
        if node is not None:
            node.stop(keep_logs=code not in (0, INTERRUPTED))
        with suppress(LaunchError):  # the store ends with this node's torchrun: the others have to read it first
            poll_until(lambda: store.add("left", 0) >= store.add("here", 0), leave_seconds())
    return code


def _address(store: RunStore) -> str:
    """Return this node's address; where its own name means loopback, the one under which another node sees it."""
    if store.nodes == 1 or not store.ip.startswith("127."):
        return store.ip
    if address := poll_until(lambda: store.get("seen"), join_seconds()):
        return address
    raise _too_few(1, store)


def _too_few(joined: int, store: RunStore) -> LaunchError:
    return LaunchError(f"{joined} of {store.nodes} nodes joined within {join_seconds():g} s (COMPRL_JOIN_SECONDS)")


def _start_head(store: RunStore, node: Node) -> Process:
    """Start Ray's head and return when all nodes have joined it.

    Other nodes get the address when Ray takes the head for alive: before that, their ``ray start`` fails. With the
    token no other node can join, nor this run's nodes another cluster. Whoever reaches the store can read it there,
    unless it is one that the user has set on all nodes, which is not published.
    """
    port, given = free_port(node.ip), node.environment.get(TOKEN)
    token = given or secrets.token_hex(32)
    address = f"{node.ip}:{port}"
    node.environment |= {"RAY_AUTH_MODE": "token", TOKEN: token, "RAY_ADDRESS": address}
    client_port = str(free_port(node.ip))  # nobody connects to it, but Ray cannot be started without
    ray = node.start_ray(
        "--head", "--port", str(port), "--ray-client-server-port", client_port, "--include-dashboard=0"
    )
    file = node.folder / "joined"
    node.start("-m", "verl_comprl.launch.count_nodes", str(file), str(store.nodes))

    def joined() -> int:
        _check(store, node, ray)
        return int(file.read_text() or 0) if file.exists() else 0

    deadline = time.monotonic() + join_seconds()
    if poll_until(joined, join_seconds()):
        head = {"address": address, "versions": installed_versions()}
        store.set("head", json.dumps(head if given else head | {"token": token}))
    if not poll_until(lambda: joined() == store.nodes, deadline - time.monotonic()):
        raise _too_few(joined(), store)
    store.set("all", "1")
    return ray


def _run(store: RunStore, node: Node, ray: Process, command: Sequence[str]) -> int:
    driver = node.start(*command)
    _on_signals(lambda number, _: driver.send_signal(number))
    poll_until(lambda: driver.poll() is not None or _check(store, node, ray))
    return driver.returncode if driver.returncode >= 0 else 128 - driver.returncode


def _check(store: RunStore, node: Node, ray: Process) -> None:
    """Raise if a node is lost."""
    if ray.poll() is not None:
        raise LaunchError(f"Ray on the first node ended with {ray.returncode}{node.ray_said()}")
    if lost := store.get("lost"):
        raise LaunchError(lost)


def _on_signals(handler: Callable[[int, FrameType | None], object]) -> None:
    for number in stop_signals():
        signal.signal(number, handler)


def _interrupt(*_: object) -> None:
    raise _Interrupted
