"""The benchmark of many episodes: its extractor as the manager takes it, and its table; nothing is started."""

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from omegaconf import OmegaConf

from benchmarks import scale
from verl_comprl.config.composing import compose
from verl_comprl.config.models import load_tokenizer
from verl_comprl.experience import Add
from verl_comprl.extractor.calls import ExtractorCalls
from verl_comprl.manager.actor import _ManagerActor

RECIPES = Path(scale.__file__).parents[1] / "recipes"


async def test_the_manager_can_distil_with_what_it_is_given(
    make_request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPRL_MODELS", str(RECIPES / "miniature/models/plain"))
    monkeypatch.setenv("COMPRL_MINIATURE", str(tmp_path))
    config = compose(RECIPES, "miniature/plain", ["extractor.rollout.prompt_length=2048"])
    OmegaConf.resolve(config)
    given: list[inspect.BoundArguments] = []
    signature = inspect.signature(_ManagerActor.connect)
    connect = SimpleNamespace(remote=lambda *arguments: given.append(signature.bind(None, *arguments)))
    monkeypatch.setattr(ray, "get", lambda reference: reference)
    setup: Any = object.__new__(scale.Setup)
    setup.config, setup.manager = config, SimpleNamespace(connect=connect)
    setup._connect()
    generate, model, longest = (given[0].arguments[name] for name in ("generate", "model", "max_prompt_tokens"))
    assert longest == 2048
    calls = ExtractorCalls(load_tokenizer(model), generate, max_prompt_tokens=longest, max_operations=3)
    answer, record = await calls.distill(make_request("a"))
    (operation,) = answer.operations
    # Whole: its length is not cut to that of the recipe.
    assert isinstance(operation, Add) and operation.content.startswith("worked: first ")
    assert len(record.response_ids) == len(record.response_log_probs) > 0 and record.weight_version == 0


def batch(*seconds: float) -> dict[str, Any]:
    rest = dict.fromkeys(("guide", "guide_longest", "report", "cpu"), 0.5)
    return {"all": max(seconds), "seconds": list(seconds), "tokens": 7.0, "waiting": (3, 1), **rest}


def ratio(*pairs: tuple[dict[str, Any], dict[str, Any]]) -> str:
    without, with_experience = zip(*pairs, strict=True)
    return scale.row(128, list(without), list(with_experience)).strip("| ").split(" | ")[3]


def test_the_interval_of_the_ratio_is_over_batches_whatever_their_episodes_took() -> None:
    pairs = (batch(1.0, 3.0), batch(3.2, 1.2)), (batch(2.0, 6.0), batch(6.4, 2.4))
    assert ratio(*pairs) == "1.100 (1.100 to 1.100)"
    # Logarithms of 1.1 and 1.5, half of whose distance is to be multiplied by t = 12.706.
    assert ratio(pairs[0], (batch(2.0, 2.0), batch(3.0, 3.0))) == "1.285 (0.179 to 9.215)"


def test_episodes_that_wait_are_means_over_batches() -> None:
    measured = [batch(1.0, 1.0), batch(1.0, 1.0) | {"waiting": (5, 2)}]
    assert scale.row(128, measured, measured).strip("| ").split(" | ")[-1] == "4, 2"


def test_what_a_measurement_leaves_in_the_queue_is_not_left_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"seconds": 1.0, "guided": False, "seconds_report": 0.1, "seconds_generate": 0.5, "tokens_generated": 7.0}
    setup: Any = object.__new__(scale.Setup)
    setup.step, setup.experience, depth = 0, True, [3.0]
    monkeypatch.setattr(setup, "play", lambda *_: (1.0, [seconds]))
    monkeypatch.setattr(setup, "waiting", lambda: depth[0])
    monkeypatch.setattr(setup, "drain", lambda: depth.__setitem__(0, 0.0))
    found = scale.measure(setup, 8, 0, SimpleNamespace(per_token=0.0), drain=False)  # pyright: ignore[reportArgumentType]
    assert found["waiting"] == (3.0, 3.0) and depth == [0.0]


def test_a_single_pair_has_no_interval() -> None:
    assert ratio((batch(1.0, 3.0), batch(3.2, 1.2))) == "1.100"
