"""Embedding of entries by all of their text, or by their titles only."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fake_embedder import FakeEmbedder

from verl_comprl.experience import Add, BankConfig, Experience, ExperienceBank, StoreError
from verl_comprl.experience.embedding.base import document, make_embedder
from verl_comprl.experience.transfer.transfer import reembed

GOAL = "open the iron vault"
RIGHT = Add(title="iron vault", content="first up then one two three four five six seven eight nine ten")
SHORT = Add(title="iron gate", content="open")


def embedder_of(documents: str) -> FakeEmbedder:
    embedder = FakeEmbedder()
    if documents == "title":
        embedder.identity["documents"] = "title"
    return embedder


async def opened(folder: Path, documents: str, **settings: Any) -> ExperienceBank:
    return await ExperienceBank.open(BankConfig(path=str(folder), **settings), embedder_of(documents))


async def found(bank: ExperienceBank) -> Experience:
    entry = (await bank.retrieve(GOAL)).entry
    assert entry is not None
    return entry


@pytest.mark.parametrize(("documents", "title"), [("text", "iron gate"), ("title", "iron vault")])
async def test_with_titles_only_the_length_of_a_content_does_not_matter(
    tmp_path: Path, apply: Any, documents: str, title: str
) -> None:
    bank = await opened(tmp_path, documents)
    await apply(bank, RIGHT, SHORT)
    assert (await found(bank)).title == title
    await bank.close()


def test_an_entry_without_a_title_is_embedded_by_its_text() -> None:
    assert document(Experience(id="", title="", content="look first"), {"documents": "title"}) == "look first"


async def test_equal_titles_take_turns(tmp_path: Path, apply: Any) -> None:
    bank = await opened(tmp_path, "title", recency_seconds=0, diversity=0.01)
    await apply(bank, *(Add(title="iron vault", content=f"lesson {n}") for n in range(5)), SHORT)
    contents = Counter([(await found(bank)).content for _ in range(15)])
    assert contents == {f"lesson {n}": 3 for n in range(5)}
    await bank.close()


async def test_a_bank_embedded_otherwise_is_refused_until_it_is_embedded_again(tmp_path: Path, apply: Any) -> None:
    bank = await opened(tmp_path, "text")
    await apply(bank, RIGHT, SHORT)
    await bank.close()
    with pytest.raises(StoreError, match="documents was 'text', is 'title'"):
        await opened(tmp_path, "title")
    bank = await opened(tmp_path, "text")
    await reembed(bank._ledger, embedder_of("title"))
    await bank.close()
    bank = await opened(tmp_path, "title")
    assert (await found(bank)).title == "iron vault"
    await bank.close()


async def test_duplicates_cannot_be_told_by_titles(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dedup_similarity=0"):
        await opened(tmp_path, "title", dedup_similarity=0.95)


@pytest.mark.slow
async def test_the_setting_is_part_of_the_identity_only_if_it_is_not_the_default() -> None:
    assert "documents" not in (await make_embedder("builtin", device="cpu")).identity
    assert (await make_embedder("builtin", device="cpu", documents="title")).identity["documents"] == "title"
