"""Every kind of difference that ``verify`` reports."""

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from verl_comprl.experience import Add, Experience, TaskUsage

Damage = Callable[[Any, Experience, Experience], Awaitable[None]]


async def lose(store: Any, a: Experience, b: Experience) -> None:
    await store.delete([a.id])


async def invent(store: Any, a: Experience, b: Experience) -> None:
    await store.upsert([a.model_copy(update={"id": "0" * 32})], await store.vectors([a.id]))


async def rewrite(store: Any, a: Experience, b: Experience) -> None:
    await store.update([a.model_copy(update={"content": "something else"})])


async def stretch(store: Any, a: Experience, b: Experience) -> None:
    await store.upsert([a], 2 * await store.vectors([a.id]))


async def half_replace(store: Any, a: Experience, b: Experience) -> None:
    await store.upsert([b], await store.vectors([b.id]), [a.id])


async def count_ahead(store: Any, a: Experience, b: Experience) -> None:
    await store.update([a.model_copy(update={"usage": (TaskUsage(task="t", uses=5),)})])


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lose, "1 entries not in the store"),
        (invent, "1 entries only in the store: 0000"),
        (rewrite, "1 entries with other text or provenance in the store than in memory"),
        (stretch, "1 entries without a normalised vector"),
        (half_replace, "1 entries replaced by another entry, but still in the store"),
        (count_ahead, "1 entries with higher counters in the store than in memory"),
    ],
)
async def test_differences_are_reported(bank: Any, apply: Any, damage: Damage, problem: str) -> None:
    await apply(bank, Add(title="a", content="x"), Add(title="b", content="y"))
    await bank.retrieve("a")  # newer counters in memory are no difference
    assert await bank.verify() == []
    await damage(bank._ledger.store, *bank.entries())
    assert any(line.startswith(problem) for line in await bank.verify())


async def test_a_different_count_is_reported(bank: Any, apply: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await apply(bank, Add(title="a", content="x"))

    async def count() -> int:
        return 7

    monkeypatch.setattr(bank._ledger.store, "count", count)
    assert await bank.verify() == ["the store counts 7 entries, but lists 1"]


async def test_an_empty_bank_is_clean(bank: Any) -> None:
    assert await bank.verify() == []
    assert (await bank._ledger.store.vectors([])).shape == (0, bank.embedding["dimension"])
    assert np.isfinite(await bank._ledger.store.vectors([])).all()
