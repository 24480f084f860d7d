"""Warnings logged in the manager's process reach the trainer."""

import logging
from collections.abc import Iterator

import pytest
from fake_embedder import FakeEmbedder  # pyright: ignore[reportMissingImports]  (tests/experience)
from managed import WHERE, Extractor, Setup

from verl_comprl.manager.kept_warnings import MAX_KEPT, KeptWarnings


@pytest.fixture
def kept() -> Iterator[KeptWarnings]:
    root, package, level = logging.getLogger(), logging.getLogger("verl_comprl"), logging.getLogger().level
    root.setLevel(logging.ERROR)  # as verl does
    kept = KeptWarnings()
    yield kept
    package.removeHandler(kept)
    package.setLevel(logging.NOTSET)
    root.setLevel(level)


async def test_the_first_traceback_of_each_kind_is_kept_and_taken_once(
    running: Setup, embedder: FakeEmbedder, extractor: Extractor, kept: KeptWarnings
) -> None:
    await running.seed("open the door")
    extractor.replies["answer"] = RuntimeError("server is gone")
    for _ in range(2):
        assert (await running.manager.search_and_ask("open the door", *WHERE)).status == "failed"
    embedder.failure = MemoryError("no memory left")
    for query in ("where?", "why?"):
        assert (await running.manager.guide(query, *WHERE)).status == "degraded"
    answering, retrieving = kept.take()
    assert "Traceback" in answering and "RuntimeError: server is gone" in answering
    assert "Traceback" in retrieving and "MemoryError: no memory left" in retrieving
    assert kept.take() == []


def test_only_warnings_of_the_package_are_kept_and_not_too_many(kept: KeptWarnings) -> None:
    ours = logging.getLogger("verl_comprl.manager.manager")
    ours.info("nothing")
    logging.getLogger("ray").warning("something else")
    assert kept.take() == []
    for number in range(MAX_KEPT + 1):
        ours.warning("number %d", number)
    assert len(taken := kept.take()) == MAX_KEPT
    assert taken[-1] == f"verl_comprl.manager.manager: number {MAX_KEPT}"
