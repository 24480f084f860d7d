"""The start of the experience manager and of its bank; Ray is replaced, since only the order of the calls matters."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from ray.exceptions import ActorDiedError, ActorUnavailableError

from verl_comprl.config.tree import ComprlConfig
from verl_comprl.manager.messages import ManagerNotOpen
from verl_comprl.manager.opening import Opening
from verl_comprl.trainer import experience_runtime, manager_guard
from verl_comprl.trainer.experience_runtime import ExperienceRuntime


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the runtime asked for, in order."""
    made: list[Any] = []

    def load(*_: Any) -> str:
        made.append("load")
        return f"loading {made.count('load')}"

    monkeypatch.setattr(experience_runtime, "comprl_config", lambda _: ComprlConfig.model_construct())
    monkeypatch.setattr(experience_runtime, "start_manager", lambda config: ("manager", load(config)))
    monkeypatch.setattr(experience_runtime, "load_manager", load)
    monkeypatch.setattr(experience_runtime, "is_connected", lambda manager: made.append("it answers"))
    monkeypatch.setattr(experience_runtime, "wait_for", lambda reference, *_: made.append(reference))
    return made


@pytest.mark.parametrize("error", [ManagerNotOpen("it has no _embedder"), ActorDiedError()])
def test_a_manager_that_is_killed_before_its_bank_is_open_loads_again(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    errors = [error]

    def open_bank(manager: str, config: Any, opening: Opening) -> None:
        calls.append(opening)
        if errors:
            raise errors.pop()

    monkeypatch.setattr(experience_runtime, "open_bank", open_bank)
    ExperienceRuntime(OmegaConf.create()).open(None, is_own=False)
    opening = Opening(keep_content=False)
    assert calls == ["load", "loading 1", opening, "it answers", "load", "loading 2", opening]


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("killed", ["restore", "connect"])
def test_a_manager_that_is_killed_while_the_models_start_begins_again(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, killed: str, is_own: bool
) -> None:
    errors = {killed: ManagerNotOpen("it has no _bank")}

    def remote(name: str) -> Any:
        def call(*_: Any) -> str:
            if name in errors:
                raise errors.pop(name)
            return name

        return SimpleNamespace(remote=call)

    monkeypatch.setattr(experience_runtime, "open_bank", lambda manager, config, opening: calls.append(opening))
    monkeypatch.setattr(experience_runtime.contents, "check", lambda folder, has_engine: None)
    monkeypatch.setattr(
        experience_runtime.contents, "load_extractor", lambda folder, extractor: calls.append("weights")
    )
    monkeypatch.setattr(experience_runtime.ManagerGuard, "start", lambda guard: calls.append("guard"))
    runtime: Any = ExperienceRuntime(OmegaConf.create({"trainer": {"val_only": False}}))
    runtime.manager = SimpleNamespace(restore=remote("restore"), connect=remote("connect"))
    folder = tmp_path / "global_step_4"
    runtime.open(folder, is_own=is_own)
    runtime.extractor = SimpleNamespace(
        publish_weights=lambda: calls.append("published"), generate=lambda actor: "ask", model="m", prompt_length=9
    )
    opening = Opening(keep_content=is_own, checkpoint=folder / "comprl")
    assert calls.pop() == opening
    calls.clear()
    runtime.connect(folder, "client")
    begins_again = ["it answers", "load", "loading 1", opening]
    done = [] if killed == "restore" else ["restore"]
    assert calls == ["weights", "published", *done, *begins_again, "restore", "connect", "guard"]


def test_a_manager_that_ray_starts_again_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray refuses calls to it meanwhile."""
    answers: list[Any] = [ActorUnavailableError("The actor is restarting.", None), ActorDiedError(), False]

    def wait(*_: Any) -> bool:
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    monkeypatch.setattr(manager_guard, "wait_for", wait)
    manager = SimpleNamespace(is_connected=SimpleNamespace(remote=dict))
    assert manager_guard.is_connected(manager) is False and answers == []


def test_a_bank_that_cannot_be_opened_is_an_error_at_once(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("another run has it open")

    monkeypatch.setattr(experience_runtime, "open_bank", refuse)
    with pytest.raises(ValueError, match="another run has it open"):
        ExperienceRuntime(OmegaConf.create()).open(None, is_own=False)
    assert calls.count("load") == 1
