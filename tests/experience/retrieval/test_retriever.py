"""Queries that are embedded together and fail apart."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from fake_embedder import FakeEmbedder

from verl_comprl.experience import Add, EmbedderUnavailable


async def test_a_query_that_an_endpoint_refuses_degrades_itself_only(
    bank: Any, apply: Any, embedder: FakeEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Endpoints refuse a request as a whole for one text beyond their model's limit."""
    await apply(bank, Add(title="lamp", content="x"))
    embed = embedder.embed_documents

    async def refuse_long(texts: Sequence[str]) -> np.ndarray:
        if any(len(text) > 512 for text in texts):
            raise RuntimeError("400: maximum context length is 512 tokens")
        return await embed(texts)

    monkeypatch.setattr(embedder, "embed_documents", refuse_long)
    long = "long " * 200
    answers = await asyncio.gather(*map(bank.retrieve, [*(f"lamp {n}" for n in range(7)), long]))
    assert [answer.status for answer in answers] == ["found"] * 7 + ["degraded"]
    with pytest.raises(RuntimeError, match="512 tokens"):
        await bank.search(long)


async def test_an_embedder_that_is_away_is_not_asked_for_each_query_again(
    bank: Any, apply: Any, embedder: FakeEmbedder
) -> None:
    await apply(bank, Add(title="lamp", content="x"))
    embedder.failure = EmbedderUnavailable("no route")
    answers = await asyncio.gather(*(bank.retrieve(f"lamp {n}") for n in range(8)))
    assert {answer.status for answer in answers} == {"degraded"} and len(embedder.query_calls) == 1
