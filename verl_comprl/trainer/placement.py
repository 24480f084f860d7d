"""Reservation of a run's device slots before any model loads.

verl reserves each group when it needs it, in whatever order its parts start, and waits for a group without limit. Two
models that start at the same time could so take each other's slots and both wait for ever. Here all groups are
reserved at once, in the order of :func:`~verl_comprl.config.slots.slot_groups`, and verl's pools find them by name.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ray._private.state import available_resources_per_node
from ray.util import placement_group, placement_group_table, remove_placement_group

from verl_comprl.config.slots import SlotGroup
from verl_comprl.platform.patches import reserve_resource_pools
from verl_comprl.platform.ray_session import ray_job

LIMIT_SECONDS = 300.0
"""What another run on the cluster still has may become free meanwhile."""

_POLL_SECONDS = 0.1
_NODE_SHARE = 1e-4
"""Of a node's resource that pins a slot, as verl takes it."""


class PlacementError(RuntimeError):
    """The cluster has not had the slots of a run in time."""


def reserve(groups: Sequence[SlotGroup], *, seconds: float = LIMIT_SECONDS) -> None:
    """Reserve groups, one after the other, for the pools of verl's that have their names.

    Args:
        groups: In the order of reservation; those that this process has reserved already are left as they are.
        seconds: Limit for all of them together.

    Raises:
        PlacementError: If the limit is over, or a node has no CPU left for its servers; what had been reserved is
            given back. It lists bundles and nodes.
    """
    reserved = reserve_resource_pools()
    job = ray_job()
    deadline = time.monotonic() + seconds
    taken: dict[str, list[Any]] = {}
    for group in groups:
        if (job, group.name) in reserved:
            continue
        taken[group.name] = [placement_group(_bundles(group, count), "STRICT_PACK") for count in group.per_node]
        if not _ready(taken[group.name], deadline):
            _give_back(taken)
            raise PlacementError(_message(group, seconds))
    while full := _full_nodes(taken):
        if time.monotonic() > deadline:
            _give_back(taken)
            raise PlacementError(
                f"the slots of {', '.join(taken)} take all CPUs of the nodes {', '.join(full)}; a server starts there "
                "only where another one is free: start nodes with more, ray start --num-cpus (they are logical)"
            )
        time.sleep(_POLL_SECONDS)
    reserved.update({(job, name): placed for name, placed in taken.items()})


def _give_back(taken: Mapping[str, Sequence[Any]]) -> None:
    for placed in (one for ones in taken.values() for one in ones):
        remove_placement_group(placed)


def _full_nodes(taken: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the nodes of reserved groups without a free CPU, which Ray wants for an actor even if it keeps none."""
    tables = [placement_group_table(one) for ones in taken.values() for one in ones]
    nodes = sorted({node for table in tables for node in table["bundles_to_node_id"].values()})
    free = available_resources_per_node()
    return [node[:8] for node in nodes if free.get(node, {}).get("CPU", 0) < 1]


def _bundles(group: SlotGroup, count: int) -> list[dict[str, float]]:
    from verl.plugin.platform import get_platform

    bundle = {"CPU": float(group.processes), get_platform().ray_resource_name(): 1.0}
    if group.node_resource:
        bundle[group.node_resource] = _NODE_SHARE
    return [dict(bundle) for _ in range(count)]


def _ready(placed: Sequence[Any], deadline: float) -> bool:
    """Wait until all are there; polled, since ``ready()`` starts a task that must be scheduled itself."""
    while any(placement_group_table(one).get("state") != "CREATED" for one in placed):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _message(group: SlotGroup, seconds: float) -> str:
    wanted = " and ".join(f"{count} on one node" for count in group.per_node)
    pinned = f" with the resource {group.node_resource!r}" if group.node_resource else ""
    lines = [
        f"the slots of {group.name} could not be reserved within {seconds:.0f} s: {wanted}{pinned}, with "
        f"{group.processes} CPUs for each slot. Free on the nodes of the cluster:"
    ]
    for node, free in sorted(available_resources_per_node().items()):
        shown = {
            name: amount for name, amount in free.items() if not name.startswith(("node:", "object_store", "memory"))
        }
        shown = {name: f"{amount:g}" for name, amount in shown.items() if "_group_" not in name}
        lines.append(f"  {node[:8]}: " + ", ".join(f"{name} {amount}" for name, amount in sorted(shown.items())))
    return "\n".join(lines)
