"""An update of the extractor begins in its own thread; on shared slots, in the actor's step."""

from types import SimpleNamespace
from typing import Any

import pytest

from verl_comprl.config.tree import ComprlConfig
from verl_comprl.experience import BankConfig
from verl_comprl.extractor.config import ExtractorConfig, QueueConfig
from verl_comprl.trainer.experience_runtime import ExperienceRuntime


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"placement": "own"}, ["thread"]),
        ({"placement": "split"}, ["thread"]),
        ({"placement": "shared", "slice_seconds": 7.0}, ["turn of 7 s"]),
        ({"placement": "shared", "train": False}, []),
        ({"placement": "own", "train": False}, []),
    ],
)
def test_an_extractor_on_shared_slots_is_trained_in_its_turn_and_never_beside_the_actor(
    settings: dict[str, Any], expected: list[str]
) -> None:
    begun: list[str] = []
    runtime = object.__new__(ExperienceRuntime)
    runtime._comprl = ComprlConfig(
        bank=BankConfig(path="-"), queue=QueueConfig(folder="-"), extractor=ExtractorConfig(**settings)
    )

    def take_turn(seconds: float, is_stopped: Any, hurries: Any) -> None:
        assert not is_stopped() and not hurries()
        begun.append(f"turn of {seconds:g} s")

    def is_stopped() -> bool:
        return False

    def start(asks: Any) -> None:
        assert asks is is_stopped
        begun.append("thread")

    learner: Any = SimpleNamespace(start=start, take_turn=take_turn)
    runtime._learner = learner
    runtime.begin([], is_stopped)
    runtime.take_turn()
    assert begun == expected
