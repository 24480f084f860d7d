"""The embedder that a bank from elsewhere names: a hub's model is loaded, a folder only where the user names it."""

import asyncio
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_embedder import FakeEmbedder

from verl_comprl.cli.bank import embedder as bank_embedder
from verl_comprl.experience import Add, BankConfig, ExperienceBank

Run = Callable[..., Any]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that were loaded."""
    models: list[str] = []

    async def make(model: str, **_: Any) -> FakeEmbedder:
        models.append(model)
        return named(model)

    monkeypatch.setattr(bank_embedder, "make_embedder", make)
    return models


def named(model: str) -> FakeEmbedder:
    embedder = FakeEmbedder(model)
    embedder.identity |= {"weights": "some"}  # as a model in this process has
    return embedder


def bank_of(model: str, folder: Path) -> Path:
    """Make a bank of one entry."""

    async def make() -> None:
        bank = await ExperienceBank.open(BankConfig(path=str(folder)), named(model))
        place = {"task": "rooms", "environment": "rooms", "step": 0, "weight_version": 0}
        await bank.apply([Add(title="door", content="pull")], call_id="call", listed=(), **place)
        await bank.close()

    asyncio.run(make())
    return folder


@pytest.mark.parametrize(
    ("name", "place"), [("lessons/model", "lessons/model"), ("model", "sentence-transformers/model")]
)
def test_a_folder_that_only_the_bank_names_is_not_loaded(
    comprl_bank: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: list[str], name: str, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    bank = bank_of(name, tmp_path / "bank")
    (tmp_path / place).mkdir(parents=True)
    refused = comprl_bank("search", "a door", "--path", bank)
    assert refused.code == 2 and loaded == []
    assert f"the bank names the embedder {name!r}, which is a file or folder here" in refused.err
    assert comprl_bank("search", "a door", "--path", bank, "--embedder", name).code == 0
    assert loaded == [name]


@pytest.mark.parametrize("model", ["somebody/model", bank_embedder.BUILTIN])
def test_other_models_are_loaded_by_the_name_that_the_bank_gives(
    comprl_bank: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: list[str], model: str
) -> None:
    monkeypatch.chdir(tmp_path)
    bank = bank_of(model, tmp_path / "bank")
    (tmp_path / bank_embedder.BUILTIN).mkdir(parents=True)  # not what is loaded by that name
    comprl_bank("search", "a door", "--path", bank)
    assert loaded == ["builtin" if model == bank_embedder.BUILTIN else model]


async def test_a_folder_is_loaded_with_the_prompts_of_the_bank_that_was_built_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A bank names the folder only, wherever that was."""
    given: dict[str, Any] = {}

    async def make(model: str, **prompts: Any) -> FakeEmbedder:
        given.update(prompts)
        return named(model)

    monkeypatch.setattr(bank_embedder, "make_embedder", make)
    options = Namespace(embedder_url=None, query_prompt=None, document_prompt=None, documents=None)
    options.embedder = str(tmp_path / "mini")
    await bank_embedder.load_embedder(options, {"model": "mini", "weights": "some", "query_prompt": "q: "})
    assert given["query_prompt"] == "q: "
