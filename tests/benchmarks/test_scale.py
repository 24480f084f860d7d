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
    assert ratio(pairs[0], (batch(2.0, 2.0), batch(3.0, 3.0))) == "1.300 (1.100 to 1.500)"


def test_a_single_pair_has_no_interval() -> None:
    assert ratio((batch(1.0, 3.0), batch(3.2, 1.2))) == "1.100"
