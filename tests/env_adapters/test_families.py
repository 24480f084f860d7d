"""Properties of every environment family: reproducible episodes, disjoint splits, robustness against any text."""

import hashlib
import random
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest
from families import FAMILIES, hostile_message, random_message

import env_adapters
from env_adapters import INFO_KEYS
from env_adapters.host import EnvironmentHost, Session
from env_adapters.host.process import ProcessWorker

EVERY = pytest.mark.parametrize("family", FAMILIES)
EPISODES = {"swebench": 4}
TURNS = {"swebench": 6}
STRINGS = 10_000
MEGABYTE = 2**20
LARGE = ("x", "<action>", "<tool_call>{", "\udc80", "<action>search[")


@pytest.fixture
async def host() -> AsyncIterator[EnvironmentHost]:
    host = EnvironmentHost(isolation="process")
    yield host
    await host.close()


async def play(session: Session, seed: int, turns: int) -> list[Any]:
    rng = random.Random(seed)
    steps: list[Any] = [await session.reset(seed)]
    info = steps[0][1]
    for _ in range(turns):
        steps.append(await session.step(random_message(rng, info["admissible_actions"], session.tools)))
        *_, terminated, truncated, info = steps[-1]
        assert info.keys() == INFO_KEYS
        if terminated or truncated:
            break
    return steps


async def digest(host: EnvironmentHost, family: str, seeds: list[int]) -> str:
    text = hashlib.sha256()
    async with host.session(family, FAMILIES[family]) as session:
        for seed in seeds:
            text.update(repr(await play(session, seed, TURNS.get(family, 30))).encode(errors="surrogatepass"))
    return text.hexdigest()


def worker(host: EnvironmentHost) -> ProcessWorker:
    (only,) = host._idle
    assert isinstance(only, ProcessWorker)
    return only


@EVERY
async def test_episodes_are_the_same_in_any_process_and_after_one_was_killed(host: EnvironmentHost, family: str):
    seeds = list(range(EPISODES.get(family, 20)))
    first = await digest(host, family, seeds)
    pid = worker(host).pid
    killed = psutil.Process(pid)
    killed.kill()
    killed.wait(30)
    assert await digest(host, family, seeds) == first
    assert worker(host).pid != pid
    # An episode does not depend on the episodes before it.
    backwards = await digest(host, family, seeds[::-1])
    assert len(seeds) == 1 or backwards != first
    assert await digest(host, family, seeds) == first


@EVERY
def test_even_seeds_are_training_and_odd_ones_held_out(family: str) -> None:
    builder = env_adapters.dataset_builder(family)
    tasks = {}
    for split in ("train", "val"):
        rows = builder(split=split, count=10, **FAMILIES[family])
        assert [row["extra_info"]["seed"] % 2 for row in rows] == [split == "val"] * 10
        tasks[split] = {row["extra_info"]["task_id"] for row in rows}
        environment = env_adapters.make(rows[0]["extra_info"]["environment"], **FAMILIES[family])
        _, info = environment.reset(seed=rows[0]["extra_info"]["seed"])
        assert rows[0]["prompt"][-1]["content"] == info["goal"]
        assert rows[0]["extra_info"]["task_id"] == info["task_id"]
        assert rows[0]["prompt"][0]["content"] == environment.instructions
        environment.close()
    assert not tasks["train"] & tasks["val"]


@EVERY
async def test_no_text_breaks_a_family(host: EnvironmentHost, family: str) -> None:
    rng = random.Random(7)
    async with host.session(family, FAMILIES[family]) as session:
        info: dict[str, Any] = {}
        over, grown = True, []
        for seed in range(40):  # a game that is read for the first time takes memory, too
            await session.reset(seed)
        for number in range(STRINGS):
            if over:
                _, info = await session.reset(rng.randrange(40))
            message = hostile_message(rng, info["admissible_actions"])
            if number % 100 == 50:
                # Fifty in each half: kept, they need 50 MB; the allocator's own steps are at most half of the limit.
                message = (LARGE[number // 100 % len(LARGE)] * MEGABYTE)[:MEGABYTE]
            observation, reward, terminated, truncated, info = await session.step(message)
            assert isinstance(observation, str) and isinstance(reward, float) and info.keys() == INFO_KEYS
            assert len(observation) < 100_000
            over = terminated or truncated
            if number in (STRINGS // 2, STRINGS - 1):
                grown.append(memory(session))
    assert grown[1] - grown[0] < 24 * MEGABYTE


def memory(session: Session) -> int:
    process = session._worker
    assert isinstance(process, ProcessWorker)
    return psutil.Process(process.pid).memory_full_info().uss
