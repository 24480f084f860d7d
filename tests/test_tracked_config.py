"""Metrics backends get the config of a run without its secrets."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from verl_comprl import training


def test_a_run_s_trainer_has_its_keys_and_its_metrics_backends_have_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.trainer.ppo.v1 import trainer_base as imported

    trainer_base: Any = imported

    class Trainer:
        total_training_steps = 1

        def __init__(self, config: Any) -> None:
            self.config = config

        def init(self):
            pass

        def fit(self, agent_loops):
            trainer_base.Tracking(config=OmegaConf.to_container(self.config, resolve=True))

        def close(self):
            pass

    given: list[Any] = []
    monkeypatch.setattr("verl.trainer.ppo.v1.get_trainer_cls", lambda mode: Trainer)
    monkeypatch.setattr(trainer_base, "Tracking", lambda config: given.append(config))
    monkeypatch.setenv("SOME_API_KEY", "sk-0123456789")
    reference = "${oc.env:SOME_API_KEY}"
    config: Any = OmegaConf.create({"trainer": {"v1": {"trainer_mode": "a"}, "val_only": True}, "key": reference})
    run: Any = training.Training(config)
    assert run.trainer.config.key == "sk-0123456789"
    run.agent_loops = []
    display = SimpleNamespace(phase=lambda *_: nullcontext())
    run.run(display, guided_fraction=None, on_start=lambda steps: None)
    assert [settings["key"] for settings in given] == [reference]
    assert OmegaConf.is_interpolation(config, "key"), "what was given is not changed"
