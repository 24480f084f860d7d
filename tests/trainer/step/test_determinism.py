"""Names and order of a reproducible run do not depend on chance, nor on a resume."""

from typing import Any

import pytest
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import trainer_base
from verl.utils import tensordict_utils as tu

from verl_comprl.trainer.trainer import ComplementarySync

ROWS = {"raw_prompt": ["a", "b"], "row": [1, 2]}


def make_trainer(step: int, deterministic: bool = True, seed: int | None = 7) -> Any:
    trainer: Any = object.__new__(ComplementarySync)
    rollout = {"full_determinism": deterministic}
    trainer.config = OmegaConf.create({"data": {"seed": seed}, "actor_rollout_ref": {"rollout": rollout}})
    trainer.global_steps = step
    trainer.train_dataloader, trainer.train_dataloader_it = [dict(ROWS)], None
    return trainer


def draw(trainer: Any) -> list[str]:
    return list(tu.get(trainer._fetch_one_gen_batch(), "uid"))


def test_prompts_have_the_same_names_in_every_run() -> None:
    trainer, resumed = make_trainer(3), make_trainer(4)
    first, more = draw(trainer), draw(trainer)  # a batch may be drawn in parts
    trainer.global_steps = 4
    second = draw(trainer)
    assert len({*first, *more, *second}) == 6
    assert draw(resumed) == second and draw(make_trainer(3)) == first
    assert not {*draw(make_trainer(3, seed=8))} & {*first}
    assert draw(make_trainer(3, seed=None)) == draw(make_trainer(3, seed=0))


def test_verls_random_names_stay_without_it() -> None:
    assert draw(make_trainer(3, deterministic=False)) != draw(make_trainer(3, deterministic=False))


@pytest.mark.parametrize("deterministic", [True, False])
def test_rows_are_in_the_order_of_their_names(deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_base.PPOTrainer, "_balance_batch", lambda self, batch, metrics: batch)
    keys = ["b_1_0", "a_1_0", "b_0_0", "a_0_0"]
    batch = KVBatchMeta(partition_id="train", keys=list(keys), tags=[{"key": key} for key in keys])
    balanced = make_trainer(1, deterministic)._balance_batch(batch, metrics={})
    assert balanced.keys == (sorted(keys) if deterministic else keys)
    assert [tag["key"] for tag in balanced.tags] == balanced.keys
