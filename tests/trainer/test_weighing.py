"""From rewards to the advantages that are trained on: our trainer around verl's own computation, numbers by hand."""

from typing import Any, Literal
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import trainer_base
from verl.utils import tensordict_utils as tu

from verl_comprl.config.tree import ActorCriticConfig, ComprlConfig, SelfDistillationConfig
from verl_comprl.names import ADVANTAGE_ESTIMATOR
from verl_comprl.rollout.episode import OUTPUT_KEY, TASK_KEY, OutputKind
from verl_comprl.trainer import weighing as weighing_module
from verl_comprl.trainer.step import batch as batch_module
from verl_comprl.trainer.trainer import ComplementarySeparateAsync, ComplementarySync

EPISODE, JUDGEMENT, DISTILLATION = OutputKind.EPISODE, OutputKind.JUDGEMENT, OutputKind.DISTILLATION
TOKENS = 3
Output = tuple[int, OutputKind, bool, float]
"""Rollout, kind, whether it is guided, success."""


class Queue:
    """TransferQueue's table of one batch, in this process; rows by key."""

    def __init__(self, outputs: list[Output], padding: int) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        for number, (rollout, kind, guided, success) in enumerate(outputs):
            details = {"guided": float(guided), "success": success}
            extra = {"reward_extra_info": details, OUTPUT_KEY: kind.value, TASK_KEY: "task"}
            self._add(f"p_{rollout}_{number}", "p", extra, success)
        for number in range(padding):
            self._add(f"padding_{number}_0", "padding", {}, 0.0)
        tags = [{"is_padding": key.startswith("padding")} for key in self.rows]
        self.batch = KVBatchMeta(partition_id="train", keys=list(self.rows), tags=tags)

    def _add(self, key: str, uid: str, extra: dict[str, Any], reward: float) -> None:
        scores = torch.tensor([0.0] * (TOKENS - 1) + [reward])
        self.rows[key] = {
            "uid": uid,
            "extra_fields": extra,
            "response_mask": torch.ones(TOKENS),
            "rm_scores": scores,
        }

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> TensorDict:
        rows = [self.rows[key] for key in keys]
        columns = {name: [row[name] for row in rows] for name in select_fields if name in rows[0]}
        return tu.get_tensordict(
            {
                name: torch.nested.as_nested_tensor(values, layout=torch.jagged)
                if isinstance(values[0], torch.Tensor)
                else values
                for name, values in columns.items()
            }
        )

    def kv_batch_put(self, keys: list[str], partition_id: str, fields: TensorDict) -> KVBatchMeta:
        for name in map(str, fields.keys()):
            values: Any = tu.get(fields, name)
            for key, value in zip(keys, values.unbind(0) if isinstance(values, torch.Tensor) else values, strict=True):
                self.rows[key][name] = value
        return self.batch


def trained(
    outputs: list[Output],
    monkeypatch: pytest.MonkeyPatch,
    *,
    padding: int = 0,
    estimator: str = ADVANTAGE_ESTIMATOR,
    weight: float = 0.0,
    source: Literal["guided", "free"] = "guided",
    kind: Any = ComplementarySync,
    updates: int = 1,
    critic: bool = False,
) -> tuple[list[float], Any]:
    """Return the advantage of each output, and the trainer."""
    queue = Queue(outputs, padding)
    for module in (trainer_base, weighing_module, batch_module):
        monkeypatch.setattr(module, "tq", queue)
    trainer: Any = object.__new__(kind)
    algorithm = {"adv_estimator": estimator, "gamma": 1.0, "lam": 1.0, "use_kl_in_reward": False}
    trainer.config = OmegaConf.create(
        {"algorithm": algorithm, "actor_rollout_ref": {"rollout": {"n": 4}}, "data": {"train_batch_size": updates}}
    )
    trainer.comprl = ComprlConfig.model_construct(
        self_distillation=SelfDistillationConfig(weight=weight, source=source),
        actor_critic=ActorCriticConfig(enabled=critic, train=critic),
    )
    trainer.parameter_sync_step, trainer._local, trainer._stretch = updates, MagicMock(), 1
    trainer._episodes = MagicMock()
    trainer._compute_advantage(queue.batch, {})
    advantages = [row["advantages"] for row in list(queue.rows.values())[: len(outputs)]]
    assert all(len(row) == TOKENS and len(set(row.tolist())) == 1 for row in advantages)
    return [float(row[0]) for row in advantages], trainer


HALVES: list[Output] = [
    (0, EPISODE, True, 1.0),
    (1, EPISODE, True, 0.0),
    (2, EPISODE, False, 1.0),
    (3, EPISODE, False, 0.0),
]


def test_each_half_is_compared_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    advantages, _ = trained(HALVES, monkeypatch)
    assert advantages == pytest.approx([0.5**0.5, -(0.5**0.5)] * 2, abs=1e-5)


def test_with_verls_estimator_all_are_compared_and_nothing_is_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    advantages, _ = trained(HALVES, monkeypatch, estimator="grpo")
    assert advantages == pytest.approx([0.5 / (1 / 3) ** 0.5, -0.5 / (1 / 3) ** 0.5] * 2, abs=1e-5)


def test_a_half_that_lost_rollouts_weighs_as_much_as_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """One guided rollout is left: its advantage is 0; the three free ones share the weight of two."""
    outputs: list[Output] = [(0, EPISODE, True, 1.0), *((n, EPISODE, False, float(n == 2)) for n in (1, 2, 3))]
    advantages, _ = trained(outputs, monkeypatch)
    deviation = (1 / 3) ** 0.5
    expected = [0.0, -1 / 3 / deviation, 2 / 3 / deviation, -1 / 3 / deviation]
    assert advantages == pytest.approx((np.array(expected) * 4 * 0.5 / 3).tolist(), abs=1e-5)


def test_a_success_that_is_imitated_without_its_experience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are padded from 6 to 8, so that a mini-batch has twice as many; verl then divides by 8."""
    outputs: list[Output] = [
        HALVES[0],
        (0, DISTILLATION, True, 1.0),
        HALVES[1],
        (1, DISTILLATION, True, 0.0),
        *HALVES[2:],
    ]
    advantages, trainer = trained(outputs, monkeypatch, padding=2, weight=0.5)
    half = 2 * 0.5**0.5
    # The loss is 0.5 times the mean over four rollouts of the negative log-prob, so 0.5 / 4 of verl's eight rows.
    assert advantages == pytest.approx([half, 0.5 * 8 / 4, -half, 0.0, half, -half], abs=1e-5)
    assert trainer._stretch == 2
    trainer._local.add_distilled.assert_called_once_with(1.0)


def test_a_free_success_is_imitated_where_the_free_half_is_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs: list[Output] = [
        *HALVES[:2],
        (2, DISTILLATION, False, 1.0),
        HALVES[2],
        (3, DISTILLATION, False, 0.0),
        HALVES[3],
    ]
    advantages, trainer = trained(outputs, monkeypatch, padding=2, weight=0.5, source="free")
    half = 2 * 0.5**0.5
    assert advantages == pytest.approx([half, -half, 0.5 * 8 / 4, half, 0.0, -half], abs=1e-5)
    trainer._local.add_distilled.assert_called_once_with(1.0)


@pytest.mark.parametrize(("kind", "updates"), [(ComplementarySync, 1), (ComplementarySeparateAsync, 2)])
def test_an_optimizer_step_takes_the_outputs_of_as_many_rollouts_and_the_setting_stays(
    monkeypatch: pytest.MonkeyPatch, kind: Any, updates: int
) -> None:
    """A prompt of four rollouts per update, two of them with a judgement: eight rows instead of four."""
    judged: list[Output] = [(0, JUDGEMENT, True, 1.0), HALVES[0], (1, JUDGEMENT, True, 0.0), *HALVES[1:]]
    _, trainer = trained(judged, monkeypatch, padding=2, kind=kind, updates=updates, critic=True)
    actor = {"ppo_mini_batch_size": 1, "calculate_entropy": False, "entropy_coeff": 0.0, "ppo_epochs": 1}
    actor |= {"data_loader_seed": 0, "shuffle": False}
    model = {"actor": actor, "rollout": {"n": 4, "temperature": 1.0}}
    trainer.config = OmegaConf.create({"actor_rollout_ref": model, "trainer": {"save_freq": -1}})
    told: list[int] = []

    def update(batch: Any) -> dict[str, Any]:
        """The engine's workers, to which verl gives the size in rows."""
        told.append(batch.extra_info["mini_batch_size"])
        if len(told) == 2:
            raise MemoryError
        return {"metrics": {"mfu": [0.5]}}

    trainer.actor_rollout_wg = MagicMock(update_actor=update)
    trainer.local_trigger_step = 0
    batch = KVBatchMeta(partition_id="train", keys=[], tags=[])
    trainer._update_actor(batch, {})
    with pytest.raises(MemoryError):
        trainer._update_actor(batch, {})
    trainer._update_actor(batch, {})
    assert told == [8, 8, 8]
    assert trainer.config.actor_rollout_ref.actor.ppo_mini_batch_size == 1


@pytest.mark.parametrize(
    ("kind", "updates", "critic", "rows"),
    [
        # 16 rollouts a step, in two mini-batches. With 24 rows, a multiple of 8 only, it would have three.
        (ComplementarySync, 1, True, {1: 16, 3: 48}),
        (ComplementarySync, 1, False, {1: 8, 3: 24}),  # verl's own: whole mini-batches
        # Of which each of two updates trains 8.
        (ComplementarySeparateAsync, 2, True, {1: 8, 3: 24}),
    ],
)
def test_a_batch_is_filled_up_to_a_multiple_of_the_planned_rollouts(
    kind: Any, updates: int, critic: bool, rows: dict[int, int]
) -> None:
    trainer: Any = object.__new__(kind)
    trainer.config = OmegaConf.create(
        {
            "actor_rollout_ref": {"rollout": {"n": 4}, "actor": {"ppo_mini_batch_size": 2}},
            "data": {"train_batch_size": 4},
            "trainer": {"critic_warmup": 0},
        }
    )
    trainer.comprl = ComprlConfig.model_construct(
        self_distillation=SelfDistillationConfig(), actor_critic=ActorCriticConfig(enabled=critic, train=critic)
    )
    trainer.parameter_sync_step, trainer.use_critic, trainer.global_steps = updates, False, 1
    assert {ranks: trainer._get_required_batch_multiple(ranks) for ranks in rows} == rows
