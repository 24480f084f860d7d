"""Device slots of a run: the groups that are reserved for it, as pure data.

A slot is a GPU, or on the CPU a logical one. Names, sizes and order of verl's groups are those of its
``PPOTrainer._init_resource_pool_mgr`` and ``RolloutReplica.init_standalone``.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from verl_comprl.config.reading import comprl_config
from verl_comprl.config.trainer_mode import is_separate
from verl_comprl.config.tree import ComprlConfig
from verl_comprl.names import FIRST_EXTRACTOR_REPLICA

ACTOR_POOL = "global_pool"
"""verl's name of the slots that the actor trains on."""

EXTRACTOR_POOL = "comprl_extractor"


@dataclass(frozen=True)
class SlotGroup:
    """Slots of one resource pool of verl's: ``per_node[i]`` of them on the i-th of its nodes."""

    name: str
    per_node: tuple[int, ...]
    processes: int = 3
    """Processes that share a slot; each takes a CPU of Ray's."""
    node_resource: str = ""
    """A resource of Ray's that the nodes must have; empty takes any node."""

    @property
    def slots(self) -> int:
        """All slots."""
        return sum(self.per_node)


def slot_groups(config: DictConfig) -> list[SlotGroup]:
    """Return the groups of a run, in the order in which they are to be reserved.

    Pinned ones come first, then those that need most slots of one node: a small group that came first could leave no
    node with enough of them.
    """
    groups = [*_actor(config), *_extractor(config)]
    return sorted(groups, key=lambda group: (not group.node_resource, -max(group.per_node)))


def extractor_slots(config: DictConfig, comprl: ComprlConfig) -> tuple[int, int]:
    """Return nodes and slots per node on which the extractor is trained."""
    owner: Any = config.trainer if comprl.shares_slots else comprl.extractor
    return owner.nnodes, owner.n_gpus_per_node


def extractor_owner(comprl: ComprlConfig) -> str:
    """Return the settings whose ``nnodes`` and ``n_gpus_per_node`` say where the extractor is trained."""
    return "trainer" if comprl.shares_slots else "comprl.extractor"


def training_ranks(model: Any, slots: int) -> int:
    """Return the ranks that a batch is split over: slots that share a sequence are one.

    Args:
        model: The subtree of the model.
        slots: Device slots on which it is trained.
    """
    return slots // model.actor.ulysses_sequence_parallel_size


def actor_servers(config: DictConfig) -> dict[str, int]:
    """Return the slots over which the actor's servers are distributed, by the settings that say how many.

    The last ones are those that play rollouts: with ``separate_async``, servers on the trainer's slots only evaluate.
    """
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    pools = {"trainer.nnodes * trainer.n_gpus_per_node": trainer.nnodes * trainer.n_gpus_per_node}
    if not is_separate(config):
        return pools
    named = "actor_rollout_ref.rollout.nnodes * actor_rollout_ref.rollout.n_gpus_per_node"
    standalone = {named: rollout.nnodes * rollout.n_gpus_per_node}
    return {**pools, **standalone} if config.actor_rollout_ref.hybrid_engine else standalone


def extractor_servers(config: DictConfig, comprl: ComprlConfig) -> dict[str, int]:
    """Return the slots over which the extractor's servers are distributed, by the settings that say how many."""
    if comprl.extractor.placement == "split":
        rollout = config.extractor.rollout
        named = "extractor.rollout.nnodes * extractor.rollout.n_gpus_per_node"
        return {named: rollout.nnodes * rollout.n_gpus_per_node}
    owner = extractor_owner(comprl)
    return {f"{owner}.nnodes * {owner}.n_gpus_per_node": math.prod(extractor_slots(config, comprl))}


def needed_slots(config: DictConfig) -> int:
    """Return the slots of all groups."""
    return sum(group.slots for group in slot_groups(config))


def _actor(config: DictConfig) -> Iterator[SlotGroup]:
    from verl.trainer.distillation import is_distillation_enabled

    trainer = config.trainer
    yield SlotGroup(ACTOR_POOL, (trainer.n_gpus_per_node,) * trainer.nnodes)
    reward = config.reward.reward_model
    if reward.get("enable_resource_pool"):
        yield SlotGroup("reward_pool", (reward.n_gpus_per_node,) * reward.nnodes)
    teacher = config.get("distillation")
    if is_distillation_enabled(teacher):
        yield SlotGroup("teacher_pool", (teacher.n_gpus_per_node,) * teacher.nnodes)
    if is_separate(config):
        rollout = config.actor_rollout_ref.rollout
        hybrid = config.actor_rollout_ref.get("hybrid_engine", True)
        first = trainer.nnodes * trainer.n_gpus_per_node // replica_slots(rollout) if hybrid else 0
        yield from _standalone(rollout, first)


def _extractor(config: DictConfig) -> Iterator[SlotGroup]:
    comprl = comprl_config(config)
    extractor = comprl.extractor
    if not comprl.has_extractor_engine or comprl.shares_slots:
        return
    resource = extractor.node_resource
    yield SlotGroup(EXTRACTOR_POOL, (extractor.n_gpus_per_node,) * extractor.nnodes, node_resource=resource)
    if extractor.placement == "split":
        yield from _standalone(config.extractor.rollout, FIRST_EXTRACTOR_REPLICA, resource)


def _standalone(rollout: Any, first: int, node_resource: str = "") -> Iterator[SlotGroup]:
    """Yield a group for each server that has slots of its own."""
    size = replica_slots(rollout)
    per_node = min(rollout.n_gpus_per_node, size)
    for rank in range(rollout.nnodes * rollout.n_gpus_per_node // size):
        yield SlotGroup(f"rollout_pool_{first + rank}", (per_node,) * (size // per_node), 2, node_resource)


def replica_slots(rollout: Any) -> int:
    """Return the slots of one server."""
    return rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
