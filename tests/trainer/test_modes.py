"""Each trainer has exactly the parts of its verl base; verl chooses them by the trainer's name, which is ours."""

import logging
from functools import partial
from typing import Any
from unittest.mock import MagicMock

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.v1 import get_trainer_cls, trainer_base, trainer_separate_async
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from verl_comprl.trainer.step import groups
from verl_comprl.trainer.stopping import WaitingStopped
from verl_comprl.trainer.watchdog.liveness import ProcessLost, VitalActors

MODES = ("sync", "colocate_async", "separate_async")

OVERRIDES = (
    "hydra.searchpath=[pkg://verl.trainer.config]",
    "data.train_batch_size=6",
    "actor_rollout_ref.actor.ppo_mini_batch_size=3",
    "actor_rollout_ref.rollout.nnodes=1",
    "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
    "trainer.v1.separate_async.parameter_sync_step=2",
    "trainer.default_local_dir=nowhere",
    "trainer.total_training_steps=5",
    "actor_rollout_ref.model.path=nowhere",
)


@pytest.fixture(scope="module")
def composed() -> DictConfig:
    with initialize_config_module("verl_comprl.config", version_base=None):
        return compose("comprl_trainer", overrides=list(OVERRIDES))


@pytest.fixture(autouse=True)
def no_accumulator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trainer of verl's makes one, which would read the model's folder."""
    monkeypatch.setattr(trainer_base, "RolloutMoELoadBalanceMetricsAccumulator", MagicMock())


def make_trainer(composed: DictConfig, name: str) -> Any:
    config: Any = OmegaConf.create(OmegaConf.to_container(composed, resolve=False))
    config.trainer.v1.trainer_mode = name
    return get_trainer_cls(name)(config)


@pytest.mark.parametrize("mode", MODES)
def test_a_stop_and_the_death_of_a_process_end_the_wait_for_rollouts(
    composed: DictConfig, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(self: VitalActors) -> None:
        raise ProcessLost("a worker has died")

    monkeypatch.setattr(VitalActors, "check", lost)
    trainer = make_trainer(composed, f"comprl_{mode}")
    with pytest.raises(ProcessLost, match="a worker has died"):
        trainer.replay_buffer._wait_for_next_poll("train", 0.0)
    trainer.request_stop()
    with pytest.raises(WaitingStopped):
        trainer.replay_buffer._wait_for_next_poll("train", 0.0)


@pytest.mark.parametrize("mode", MODES)
def test_groups_without_rows_are_replaced_where_prompts_are_submitted_ahead(
    composed: DictConfig, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[Any, int]] = []
    monkeypatch.setattr(groups, "refill_groups_without_rows", lambda *given: made.append(given))
    trainer = make_trainer(composed, f"comprl_{mode}")
    # At most four batches of six prompts, so that a run in which everything fails ends.
    assert made == ([] if mode == "sync" else [(trainer.replay_buffer, 24)])


@pytest.mark.parametrize(
    ("mode", "buffer", "prompts_at_a_time", "updates"),
    [
        ("sync", ReplayBuffer, 6, 1),
        ("colocate_async", ReplayBufferAsync, 1, 1),
        ("separate_async", ReplayBufferAsync, 1, 2),
    ],
)
def test_parts_of_each_mode(
    composed: DictConfig,
    mode: str,
    buffer: type,
    prompts_at_a_time: int,
    updates: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaders: list[dict[str, Any]] = []
    monkeypatch.setattr(trainer_base, "create_rl_dataset", lambda *_, **__: [{}] * 12)
    monkeypatch.setattr(trainer_base, "create_rl_sampler", lambda *_: None)
    monkeypatch.setattr(trainer_base, "StatefulDataLoader", lambda **options: loaders.append(options))
    found = {}
    for name in (mode, f"comprl_{mode}"):
        trainer = make_trainer(composed, name)
        trainer.tokenizer = trainer.processor = None
        trainer._init_dataloader()
        assert type(trainer.replay_buffer) is buffer
        assert trainer.parameter_sync_step == updates
        assert trainer.config.trainer.v1.trainer_mode == trainer.trainer_mode == mode
        found[name] = (
            loaders[0]["batch_size"],
            trainer.config.data.get("gen_batch_size"),
            trainer.config.actor_rollout_ref.actor.optim.total_training_steps,
            {key: value for key, value in vars(trainer.replay_buffer).items() if isinstance(value, int | str | None)},
        )
        loaders.clear()
    ours, theirs = found[f"comprl_{mode}"], found[mode]
    assert ours == theirs and ours[0] == prompts_at_a_time and ours[2] == 5 * updates


def test_with_separate_async_verl_can_say_that_there_are_no_hybrid_servers(
    composed: DictConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It does so with an argument that loggers do not take. The patch is global: another test may have made it."""
    logger = trainer_separate_async.logger
    monkeypatch.setattr(logger, "info", partial(logging.Logger.info, logger))
    with caplog.at_level(logging.INFO, logger.name):
        with pytest.raises(TypeError, match="flush"):
            logger.info("no hybrid servers", flush=True)  # pyright: ignore[reportCallIssue]
        make_trainer(composed, "comprl_separate_async")
        logger.info("no hybrid servers", flush=True)  # pyright: ignore[reportCallIssue]
    messages = [record.getMessage() for record in caplog.records if record.name == logger.name]
    assert messages == ["no hybrid servers"]
