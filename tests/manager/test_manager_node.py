"""The manager's node; Ray itself is a fake that writes down what it is asked for."""

from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from verl_comprl.manager import actor


def test_it_runs_on_the_drivers_node_if_that_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    node = "ab" * 28
    context = SimpleNamespace(get_node_id=lambda: node, get_job_id=lambda: "job")
    loading = SimpleNamespace(remote=lambda *_: "loading")

    class Remote:
        def options(self, **options: Any) -> Any:
            asked.append(options)
            return SimpleNamespace(remote=lambda: SimpleNamespace(load=loading))

    monkeypatch.setattr(actor, "ray", SimpleNamespace(remote=lambda _: Remote(), get_runtime_context=lambda: context))
    monkeypatch.setattr(actor, "comprl_config", dict)
    model = {"path": "model", "trust_remote_code": False}
    config = {"trainer": {"default_local_dir": "run"}, "actor_rollout_ref": {"model": model}}
    assert actor.start_manager(OmegaConf.create(config))[1] == "loading"
    where = asked[0]["scheduling_strategy"]
    # Soft: the head of a cluster may have no CPUs for actors.
    assert (where.node_id, where.soft) == (node, True)
