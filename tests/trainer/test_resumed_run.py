"""A run that is resumed ends with the same bits as one that was not interrupted, given the same seed.

Without experience; and with it, with an extractor that always answers the same about the same episode, where guides do
not depend on what is distilled first: a frozen one behind an endpoint, and one whose samples
are trained on, by an engine that stays as it is.
"""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from arm_settings import SMALL
from chat_endpoint import ChatEndpoint, Messages
from lessons import lesson_about
from running import read_steps, run_lent
from torch.utils._pytree import keystr, tree_flatten_with_path

from verl_comprl.experience.transfer.snapshot import read_snapshot
from verl_comprl.record import RunRecord

pytestmark = [pytest.mark.run, pytest.mark.long, pytest.mark.timeout(1500)]

SAVED, STEPS = 2, 4
COMMON = [
    "trainer.save_freq=2",
    "actor_rollout_ref.rollout.full_determinism=true",
    "actor_rollout_ref.rollout.n=4",
    f"trainer.total_training_steps={STEPS}",
]
EXPERIENCE = [
    "comprl.warmup_steps=0",
    "comprl.extractor.distillation_workers=1",
    # The order in which a step's episodes end differs from run to run: no answer may depend on what came before it,
    # and no guide on what was read before.
    "comprl.extractor.list_nearest=0",
    "comprl.merge.every=0",
    "comprl.search_and_ask.max_calls=0",
    "comprl.exploration=0",
    "comprl.bank.diversity=0",
    "comprl.bank.recency_seconds=0",
]
RECORDED = [
    *EXPERIENCE,
    "arm=static_online",
    "extractor.model.path=null",
    "comprl.extractor.backend=endpoint",
    "comprl.extractor.endpoint.model=recorded",
    "comprl.extractor.endpoint.key_variable=''",
]
BATCH = 2
TRAINED = [
    *EXPERIENCE,
    "arm=complementary",
    f"comprl.extractor.batch_size={BATCH}",
    f"extractor.actor.ppo_micro_batch_size_per_gpu={BATCH}",
]


@pytest.fixture
def recorded() -> Iterator[str]:
    """URL of an extractor that writes an entry about what the agent did."""

    def answer(messages: Messages) -> str:
        return lesson_about(messages[-1]["content"].partition("Episode:")[2])

    endpoint = ChatEndpoint(answer)
    endpoint.server.start()
    yield endpoint.url
    endpoint.server.stop()


def state(checkpoint: Path) -> dict[str, Any]:
    """Return all that verl saves, by path: weights, optimizer, schedule, random states and the place in the data."""
    files = [*checkpoint.glob("actor/*.pt"), checkpoint / "data.pt"]
    states = {file.name: torch.load(file, weights_only=False) for file in files}  # verl's own format
    return {keystr(path): getattr(value, "_local_tensor", value) for path, value in tree_flatten_with_path(states)[0]}


def played(run: Path) -> dict[str, tuple[Any, ...]]:
    """Return what was played and how it was trained, with what a guided episode read."""
    episodes = RunRecord(run).episodes(steps=range(SAVED + 1, STEPS + 1))
    keys = ("guided", "input", "output", "score", "advantage")
    return {episode["id"]: tuple(episode[key] for key in keys) for episode in episodes}


def entries(checkpoint: Path) -> Counter[tuple[Any, ...]]:
    """Return the bank's entries with their uses and successes, of which ids and times are left out."""
    found = read_snapshot(checkpoint / "comprl" / "bank", None).entries
    return Counter((entry.text, entry.source_trajectory, entry.created_step, entry.usage) for entry in found)


def call_events(run: Path) -> Counter[str]:
    """Return the extractor's calls after the checkpoint, with what rewarded them and what was trained on.

    Without times, to which the step of an update belongs, too: that is the step in which it ended.
    """
    found = Counter[str]()
    for event in RunRecord(run).call_events(range(SAVED + 1, STEPS + 1)):
        left_out = {"at", "step"} if event["event"] == "trained" else {"at"}
        found[json.dumps({key: value for key, value in event.items() if key not in left_out})] += 1
    return found


def waiting(checkpoint: Path) -> list[Any]:
    """Return the samples that wait for a batch."""
    return json.loads((checkpoint / "comprl/buffer/samples.json").read_text())["samples"]


def compared(folder: Path, place: Path, settings: list[str], **kind: bool) -> tuple[Path, Path]:
    """Return the folders of a whole run and of one that was resumed, after their comparison."""
    for name in ("models", "data"):
        (place / name).symlink_to(folder / name)
    saved = place / "whole" / f"global_step_{SAVED}"
    resumed = [*settings, "trainer.resume_mode=resume_path", f"trainer.resume_from_path={saved}"]
    runs: list[dict[str, Any]] = [{"name": "whole", "overrides": settings}, {"name": "resumed", "overrides": resumed}]
    run_lent(place, [run | kind for run in runs], [*SMALL, f"trainer.default_local_dir={place}"])

    whole, again = place / "whole", place / "resumed"
    assert [step["step"] for step in read_steps(again)] == list(range(SAVED + 1, STEPS + 1))
    # Something was learned after the checkpoint, or there would be nothing to compare.
    assert max(step["actor/grad_norm"] for step in read_steps(again)) > 0
    assert played(again) == played(whole) != {}
    expected, found = (state(run / f"global_step_{STEPS}") for run in (whole, again))
    assert expected.keys() == found.keys()
    assert [name for name in expected if not np.array_equal(expected[name], found[name])] == []
    return whole, again


def test_a_resumed_baseline_equals_the_uninterrupted_one_bit_for_bit(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("resumed")
    compared(folder, place, ["arm=baseline", *COMMON])
    shutil.rmtree(place)


def test_so_does_a_run_with_experience_whose_extractor_is_recorded(
    folder: Path, recorded: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("resumed_with_experience")
    settings = [*RECORDED, f"comprl.extractor.endpoint.url={recorded}", *COMMON]
    whole, again = compared(folder, place, settings, drained=True)
    guided = [episode for episode in RunRecord(again).episodes() if episode["guided"]]
    assert len(guided) == 2 * 2 * (STEPS - SAVED) and all("lesson" in episode["input"] for episode in guided)
    bank = entries(whole / f"global_step_{STEPS}")
    assert entries(again / f"global_step_{STEPS}") == bank and sum(bank.values()) > 2 * 4 * SAVED
    assert sum(use.uses for *_, usage in bank.elements() for use in usage) > 0
    shutil.rmtree(place)


def test_so_does_one_that_trains_on_what_its_recorded_extractor_wrote(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("resumed_with_training")
    whole, again = compared(folder, place, [*TRAINED, *COMMON], drained=True, answering=True)
    last = f"global_step_{STEPS}"
    bank = entries(whole / last)
    assert entries(again / last) == bank and sum(bank.values()) > 2 * 4 * SAVED
    events = call_events(whole)
    assert call_events(again) == events
    assert {json.loads(event)["event"] for event in events} == {"call", "use", "trained"}
    assert waiting(again / last) == waiting(whole / last)
    assert waiting(whole / f"global_step_{SAVED}") != [], "the resumed run took nothing over"
    shutil.rmtree(place)
