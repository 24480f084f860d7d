"""Reservations belong to one Ray; see ``test_reservation`` for those on a real one."""

from types import SimpleNamespace

import pytest
import ray

from verl_comprl.config.slots import SlotGroup
from verl_comprl.trainer import placement


def test_nothing_is_reserved_in_a_ray_that_was_started_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its job has the same number as that of the first one, since each Ray counts from 1."""
    made: list[object] = []
    reserved: dict[tuple[str, str], list[object]] = {}
    node = "first"
    context = SimpleNamespace(get_job_id=lambda: "01000000", get_node_id=lambda: node)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(placement, "reserve_resource_pools", lambda: reserved)
    monkeypatch.setattr(placement, "placement_group", lambda *_: made.append(object()) or made[-1])
    monkeypatch.setattr(placement, "placement_group_table", lambda _: {"state": "CREATED", "bundles_to_node_id": {}})
    monkeypatch.setattr(placement, "available_resources_per_node", dict)
    groups = [SlotGroup("global_pool", (1,)), SlotGroup("comprl_extractor", (1,))]
    placement.reserve(groups)
    placement.reserve(groups)
    assert len(made) == 2
    node = "second"
    placement.reserve(groups)
    assert len(made) == 4
