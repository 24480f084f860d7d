"""The experience manager on a real bank, without Ray and without a model."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from fake_embedder import FakeEmbedder  # pyright: ignore[reportMissingImports]  (tests/experience)
from managed import Extractor, Open, Setup
from opened import OpenManager  # pyright: ignore[reportMissingImports]

from verl_comprl.config.tree import ComprlConfig
from verl_comprl.experience import BankConfig, ExperienceBank
from verl_comprl.extractor.calls import ExtractorCalls
from verl_comprl.extractor.config import ExtractorConfig, QueueConfig
from verl_comprl.extractor.credit import ONE_STEP, Settling
from verl_comprl.manager import actor
from verl_comprl.manager.call_log import CallLog
from verl_comprl.manager.manager import ExperienceManager
from verl_comprl.manager.opening import Opening


@pytest.fixture
def embedder() -> FakeEmbedder:
    return FakeEmbedder()


@pytest.fixture
def extractor() -> Extractor:
    return Extractor()


@pytest_asyncio.fixture
async def open_manager(
    tmp_path: Path, embedder: FakeEmbedder, extractor: Extractor, make_calls: Callable[..., ExtractorCalls]
) -> AsyncIterator[Open]:
    opened: list[ExperienceManager] = []

    async def open_(
        folder: str = "bank",
        *,
        bank: dict[str, Any] | None = None,
        extractor_settings: dict[str, Any] | None = None,
        votes: bool = False,
        recover: bool = False,
        **settings: Any,
    ) -> Setup:
        config = ComprlConfig(
            bank=BankConfig(path=str(tmp_path / folder), **bank or {}),
            queue=QueueConfig(folder=str(tmp_path / f"{folder}-queue"), max_attempts=3, backoff_seconds=0.0),
            extractor=ExtractorConfig(**{"batch_size": 1, "distillation_workers": 2, **(extractor_settings or {})}),
            **settings,
        )
        opened_bank = await ExperienceBank.open(config.bank, embedder)
        call_log = CallLog(tmp_path / f"{folder}-calls")
        journal = tmp_path / f"{folder}.jsonl"
        manager = ExperienceManager(config, opened_bank, journal=journal, call_log=call_log, recover=recover)
        opened.append(manager)
        calls = make_calls(extractor, votes=votes, through=manager.availability.when_there)
        return Setup(manager, opened_bank, calls)

    yield open_
    for manager in opened:
        await manager.close()


@pytest_asyncio.fixture
async def running(open_manager: Open) -> Setup:
    setup = await open_manager()
    setup.start()
    return setup


@pytest_asyncio.fixture
async def start_manager(
    tmp_path: Path, embedder: FakeEmbedder, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[OpenManager]:
    """Return a function that closes the manager before, as the end of its run does, and opens another one."""
    monkeypatch.setattr(actor, "_actor_name", lambda run: run)
    monkeypatch.setattr(actor, "write_address", lambda *_: None)  # it is of a Ray actor
    monkeypatch.setattr(actor, "relieve_garbage_collector", lambda: None)
    managers: list[Any] = []

    async def open_(opening: Opening, folder: str = "bank", *, settling: Settling = ONE_STEP, **settings: Any) -> Any:
        if managers:
            await managers.pop().close()
        manager = actor._ManagerActor()
        manager._embedder, manager._tokenizer = embedder, None
        config = ComprlConfig(
            bank=BankConfig(path=str(tmp_path / folder)),
            queue=QueueConfig(folder=str(tmp_path / "queue")),
            **settings,
        )
        await manager.open(config, opening, run=str(tmp_path), seed=0, settling=settling)
        managers.append(manager)
        return manager

    yield open_
    for manager in managers:
        await manager.close()
