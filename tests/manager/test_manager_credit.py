"""Credit: every outcome of a guided episode reaches every record it used, once, also across a resume."""

import tempfile
from collections import defaultdict
from pathlib import Path

import pytest
from fake_embedder import FakeEmbedder  # pyright: ignore[reportMissingImports]  (tests/experience)
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from verl_comprl.config.tree import ComprlConfig
from verl_comprl.experience import BankConfig, ExperienceBank
from verl_comprl.experience.schema import DistillationRequest, Outcome
from verl_comprl.extractor.buffer import KEEP_UNREFERENCED_STEPS
from verl_comprl.extractor.config import ExtractorConfig, QueueConfig
from verl_comprl.extractor.generation_record import CallKind, GenerationRecord
from verl_comprl.manager.manager import ExperienceManager
from verl_comprl.manager.messages import EpisodeReport

RECORDS = ("entry", "merged", "answer")

EPISODE = st.tuples(
    st.just("episode"),
    st.integers(0, 11),  # its id: the same one may be reported again
    st.booleans(),  # guided
    st.booleans(),  # success
    st.lists(st.sampled_from([*RECORDS, "imported"]), max_size=3, unique=True),
)
GUIDED, FREE = ("episode", 0, True, True, ["entry"]), ("episode", 4, False, True, [])
# Few enough that no record is forgotten: nothing refers to these but episodes.
EVENTS = st.lists(EPISODE | st.just(("collect",)) | st.just(("resume",)), max_size=KEEP_UNREFERENCED_STEPS)


async def open_manager(folder: Path, relative: bool = False) -> ExperienceManager:
    utility = "relative" if relative else "outcome"
    config = ComprlConfig(
        bank=BankConfig(path=str(folder / "bank")),
        queue=QueueConfig(folder=str(folder / "queue")),
        extractor=ExtractorConfig(batch_size=1, cooldown=0, distill=False, utility=utility),
    )
    return ExperienceManager(config, await ExperienceBank.open(config.bank, FakeEmbedder()))


def record(id: str) -> GenerationRecord:
    return GenerationRecord(
        id=id,
        kind=CallKind.DISTILL,
        prompt_ids=(1,),
        response_ids=(2,),
        response_log_probs=(-1.0,),
        weight_version=0,
    )


def report(id: int, guided: bool, success: bool, used: list[str], step: int = 0) -> EpisodeReport:
    name = f"{id // 4}_{id % 4}"  # four rollouts per prompt
    request = DistillationRequest(
        id=name, task="t", environment="e", goal="g", turns=(), outcome=Outcome(success=success), step=step
    )
    return EpisodeReport(request, guided, tuple(used))


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(events=EVENTS)
async def test_every_outcome_is_credited_once(events: list[tuple]) -> None:
    """The expectation is written out with plain dictionaries: no buffer, no ids of samples, no files."""
    reported: set[int] = set()
    open_uses: dict[str, list[float]] = defaultdict(list)
    expected: list[tuple[str, list[float]]] = []
    outcomes = 0.0
    step = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manager = await open_manager(folder / "0")
        for id in RECORDS:
            manager._buffer.add(record(id))
        for number, (kind, *event) in enumerate([*events, ("collect",)]):
            if kind == "episode":
                id, guided, success, used = event
                await manager.report(report(id, guided, success, used))
                if id not in reported and guided:
                    for record_id in used:
                        if record_id in RECORDS:  # nobody is trained on imported text
                            open_uses[record_id].append(1.0 if success else -1.0)
                            outcomes += 1.0 if success else -1.0
                reported.add(id)
            elif kind == "collect":
                step += 1
                await manager.collect(step)
                expected += open_uses.items()
                open_uses = defaultdict(list)
            else:
                await manager.save(str(folder / f"snapshot-{number}"))
                await manager.close()
                manager = await open_manager(folder / str(number + 1))
                await manager.restore(str(folder / f"snapshot-{number}"))
        found = []
        while batch := await manager.next_batch():
            found.append((batch.records[0].id, batch.rewards[0]))
            await manager.trained()
        await manager.close()
    # Within a collection step the order is random, on purpose.
    found.sort()
    expected.sort(key=lambda sample: (sample[0], sum(sample[1]) / len(sample[1])))
    assert found == [(id, pytest.approx(sum(values) / len(values))) for id, values in expected]
    uses = [len(values) for _, values in expected]
    assert sum(reward * count for (_, reward), count in zip(found, uses, strict=True)) == pytest.approx(outcomes)


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(events=EVENTS)
@example(events=[("collect",), GUIDED, ("collect",), ("collect",), FREE])
async def test_every_relative_outcome_is_credited_once(events: list[tuple]) -> None:
    """Each use gets outcome minus baseline: of its prompt's free half, or after two steps of the task's in these.

    Like the manager, the expectation dates what is reported by the last step that was closed; a run's first is 1.
    """
    reported: set[int] = set()
    waiting: list[tuple[str, int, float, int]] = []
    free: dict[int, list[float]] = defaultdict(list)
    seen: dict[int, int] = {}
    all_free: list[tuple[int, float]] = []
    expected: list[tuple[str, float]] = []
    step = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manager = await open_manager(folder / "0", relative=True)
        for id in RECORDS:
            manager._buffer.add(record(id))
        for number, (kind, *event) in enumerate([*events, *[("collect",)] * 3]):
            if kind == "episode":
                id, guided, success, used = event
                await manager.report(report(id, guided, success, used, step))
                outcome = 1.0 if success else -1.0
                if id not in reported and guided:
                    waiting += [(record_id, id // 4, outcome, step) for record_id in used]
                elif id not in reported:
                    free[id // 4].append(outcome)
                    all_free.append((step, outcome))
                    seen[id // 4] = step
                reported.add(id)
            elif kind == "collect":
                step += 1
                await manager.collect(step)
                uses: dict[str, list[float]] = defaultdict(list)
                for use in list(waiting):
                    record_id, prompt, outcome, at = use
                    if free[prompt] or step - at >= 2:
                        waiting.remove(use)
                        compared = free[prompt] or [outcome for at, outcome in all_free if step - at <= 2]
                        if record_id in RECORDS:
                            uses[record_id].append(outcome - (sum(compared) / len(compared) if compared else 0.0))
                expected += [(record_id, sum(values) / len(values)) for record_id, values in uses.items()]
                for prompt in [prompt for prompt, at in seen.items() if step - at >= 2]:
                    del free[prompt], seen[prompt]
            else:
                await manager.save(str(folder / f"snapshot-{number}"))
                await manager.close()
                manager = await open_manager(folder / str(number + 1), relative=True)
                await manager.restore(str(folder / f"snapshot-{number}"))
        found = []
        while batch := await manager.next_batch():
            found.append((batch.records[0].id, batch.rewards[0]))
            await manager.trained()
        await manager.close()
    assert not waiting
    assert sorted(found) == [(id, pytest.approx(reward)) for id, reward in sorted(expected)]


async def test_relative_rewards_wait_from_the_report_on(tmp_path: Path) -> None:
    """With an asynchronous trainer, episodes end some steps after their prompt was submitted."""
    manager = await open_manager(tmp_path, relative=True)
    manager._buffer.add(record("entry"))
    await manager.collect(9)
    await manager.report(report(0, True, True, ["entry"], step=1))
    await manager.collect(10)
    assert await manager.next_batch() is None
    await manager.report(report(1, False, False, [], step=1))
    await manager.collect(11)
    batch = await manager.next_batch()
    assert batch is not None and batch.rewards == [2.0]  # 1 - (-1)
    await manager.close()


async def test_a_repeated_episode_counts_once_in_later_steps_too(tmp_path: Path) -> None:
    """A resumed run plays the episodes again that were running, under the same ids."""
    manager = await open_manager(tmp_path)
    manager._buffer.add(record("entry"))
    await manager.report(report(0, True, True, ["entry"], step=1))
    await manager.collect(1)
    await manager.save(str(tmp_path / "saved"))
    await manager.restore(str(tmp_path / "saved"))
    await manager.report(report(0, True, False, ["entry"], step=4))
    await manager.collect(4)
    batch = await manager.next_batch()
    assert batch is not None and batch.rewards == [1.0]
    await manager.trained()
    assert await manager.next_batch() is None
    await manager.close()
