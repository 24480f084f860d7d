"""Slots of a run: groups, their order and totals, counted by hand."""

import pytest
from omegaconf import DictConfig

from verl_comprl.config.reading import comprl_config
from verl_comprl.config.slots import extractor_slots, needed_slots, slot_groups


@pytest.fixture
def config(config: DictConfig) -> DictConfig:
    config.trainer.nnodes, config.trainer.n_gpus_per_node = 2, 4
    config.comprl.extractor.nnodes, config.comprl.extractor.n_gpus_per_node = 1, 8
    return config


def shape(config: DictConfig) -> list[tuple[str, tuple[int, ...]]]:
    return [(group.name, group.per_node) for group in slot_groups(config)]


def test_the_group_that_needs_most_of_a_node_is_reserved_first(config: DictConfig) -> None:
    assert shape(config) == [("comprl_extractor", (8,)), ("global_pool", (4, 4))]
    assert needed_slots(config) == 16


def test_a_pinned_group_comes_before_larger_ones(config: DictConfig) -> None:
    config.comprl.extractor.n_gpus_per_node = 1
    config.comprl.extractor.node_resource = "comprl_node_1"
    assert [(group.name, group.node_resource) for group in slot_groups(config)] == [
        ("comprl_extractor", "comprl_node_1"),
        ("global_pool", ""),
    ]


def test_a_shared_extractor_has_the_actors_slots(config: DictConfig) -> None:
    config.comprl.extractor.placement = "shared"
    assert shape(config) == [("global_pool", (4, 4))]
    assert extractor_slots(config, comprl_config(config)) == (2, 4)


def test_no_slots_for_an_extractor_that_there_is_not(config: DictConfig) -> None:
    config.comprl.experience = False
    assert shape(config) == [("global_pool", (4, 4))]


def test_servers_of_a_split_extractor_have_groups_of_their_own(config: DictConfig) -> None:
    config.comprl.extractor.placement = "split"
    rollout = config.extractor.rollout
    rollout.nnodes, rollout.n_gpus_per_node, rollout.tensor_model_parallel_size = 2, 4, 2
    assert shape(config) == [
        ("comprl_extractor", (8,)),
        ("global_pool", (4, 4)),
        *((f"rollout_pool_{1000 + rank}", (2,)) for rank in range(4)),
    ]
    assert needed_slots(config) == 24
    # A server over two nodes: 8 slots of it, 4 on each.
    rollout.tensor_model_parallel_size = 8
    assert shape(config)[2:] == [("rollout_pool_1000", (4, 4))]


def test_a_split_extractor_that_is_pinned_is_pinned_with_its_servers(config: DictConfig) -> None:
    config.comprl.extractor.placement, config.comprl.extractor.node_resource = "split", "comprl_node_1"
    rollout = config.extractor.rollout
    rollout.nnodes, rollout.n_gpus_per_node, rollout.tensor_model_parallel_size = 1, 2, 1
    assert {group.name: group.node_resource for group in slot_groups(config)} == {
        "comprl_extractor": "comprl_node_1",
        "rollout_pool_1000": "comprl_node_1",
        "rollout_pool_1001": "comprl_node_1",
        "global_pool": "",
    }


@pytest.mark.parametrize(("hybrid", "first"), [(True, 8), (False, 0)])
def test_the_servers_of_separate_async_come_after_the_hybrid_ones(config: DictConfig, hybrid: bool, first: int) -> None:
    config.trainer.v1.trainer_mode = "comprl_separate_async"
    config.actor_rollout_ref.hybrid_engine = hybrid
    rollout = config.actor_rollout_ref.rollout
    rollout.nnodes, rollout.n_gpus_per_node, rollout.tensor_model_parallel_size = 1, 2, 1
    names = [name for name, _ in shape(config) if name.startswith("rollout_pool_")]
    assert names == [f"rollout_pool_{first}", f"rollout_pool_{first + 1}"]


def test_models_of_verl_with_slots_of_their_own_are_counted(config: DictConfig) -> None:
    reward = config.reward.reward_model
    reward.enable_resource_pool, reward.nnodes, reward.n_gpus_per_node = True, 1, 3
    assert ("reward_pool", (3,)) in shape(config)
    assert needed_slots(config) == 19
