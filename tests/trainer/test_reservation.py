"""Slots are reserved in order, within a limit, on a real Ray cluster of two nodes."""

import time
from collections.abc import Iterator

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util import placement_group_table

from verl_comprl.config.slots import SlotGroup
from verl_comprl.trainer.placement import PlacementError, reserve

pytestmark = [pytest.mark.run, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def nodes() -> Iterator[dict[str, str]]:
    """Ids of a large node and of a small one that has the resource "corner"."""
    cluster = Cluster()
    try:
        cluster.add_node(num_gpus=4, num_cpus=16)
        cluster.add_node(num_gpus=2, num_cpus=12, resources={"corner": 1})
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False)
        yield {"corner" if "corner" in node["Resources"] else "large": node["NodeID"] for node in ray.nodes()}
    finally:
        ray.shutdown()
        cluster.shutdown()


def states() -> list[str]:
    return [one["state"] for one in placement_group_table().values()]


def test_what_does_not_fit_is_an_error_with_bundles_and_nodes_and_nothing_is_kept(nodes: dict[str, str]) -> None:
    started = time.monotonic()
    with pytest.raises(PlacementError) as caught:
        reserve([SlotGroup("fits", (2,)), SlotGroup("too_large", (5,))], seconds=5)
    assert time.monotonic() - started < 30
    first, *lines = str(caught.value).splitlines()
    assert "too_large" in first and "within 5 s: 5 on one node" in first
    shown = {line.split(":")[0].strip() for line in lines}
    assert shown == {node[:8] for node in nodes.values()}
    assert any("corner 1" in line for line in lines)
    all_is_given_back()


def all_is_given_back() -> None:
    deadline = time.monotonic() + 30
    while set(states()) != {"REMOVED"} and time.monotonic() < deadline:
        time.sleep(0.1)
    assert set(states()) == {"REMOVED"}


def test_slots_that_leave_no_cpu_for_a_server_on_their_node_are_an_error(nodes: dict[str, str]) -> None:
    everything = SlotGroup("global_pool", (4,), processes=4)
    with pytest.raises(PlacementError, match=f"global_pool take all CPUs of the nodes {nodes['large'][:8]};"):
        reserve([everything], seconds=10)
    all_is_given_back()


def test_pools_of_verl_take_what_was_reserved_for_them(nodes: dict[str, str]) -> None:
    from verl.single_controller.ray.base import RayResourcePool, ResourcePoolManager

    pinned = SlotGroup("comprl_extractor", (1,), node_resource="corner")
    groups = [pinned, SlotGroup("global_pool", (4,)), SlotGroup("rollout_pool_0", (1,), processes=2)]
    reserve(groups)
    before = len(states())
    reserve(groups)  # a second run on the same engines
    assert len(states()) == before

    # verl's manager counts what is available, of which nothing is left.
    manager = ResourcePoolManager({"global_pool": [4]}, {0: "global_pool"})
    manager.create_resource_pool()
    pools = {
        "global_pool": manager.resource_pool_dict["global_pool"],
        "comprl_extractor": RayResourcePool([1], name_prefix="comprl_extractor"),
        "rollout_pool_0": RayResourcePool([1], name_prefix="rollout_pool_0"),
    }
    placed = {}
    for name, pool in pools.items():
        (group,) = pool.get_placement_groups(device_name="cpu")
        table = placement_group_table(group)
        assert table["state"] == "CREATED"
        placed[name] = set(table["bundles_to_node_id"].values())
    assert len(states()) == before
    assert placed == {
        "comprl_extractor": {nodes["corner"]},
        "global_pool": {nodes["large"]},
        "rollout_pool_0": {nodes["corner"]},
    }
    with pytest.raises(ValueError, match="less than total desired"):
        ResourcePoolManager({"not_reserved": [4]}, {0: "not_reserved"}).create_resource_pool()
