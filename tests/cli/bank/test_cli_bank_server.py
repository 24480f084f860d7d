"""Bank commands on a server: alone, while a run writes to the bank, and from a folder to a server and back."""

import asyncio
import json
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_embedder import FakeEmbedder
from qdrant_double import QdrantDouble
from test_cli_bank import contents

from verl_comprl.cli.bank import embedder as bank_embedder
from verl_comprl.experience import BankConfig, ExperienceBank
from verl_comprl.experience.transfer.snapshot import read_snapshot

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    if given := os.environ.get("QDRANT_URL"):
        yield given
        return
    double = QdrantDouble().start()
    yield double.url
    double.close()


@pytest.fixture
def target(url: str, comprl_bank: Run, folder: Path, tmp_path: Path) -> tuple[str, ...]:
    """A bank on the server with the content of ``folder``."""
    target = ("--url", url, "--collection", f"test-{uuid.uuid4().hex}")
    assert comprl_bank("export", tmp_path / "exported", "--path", folder).code == 0
    assert "added 6 entries" in comprl_bank("import", tmp_path / "exported", *target).out
    return target


def test_from_a_folder_to_a_server_and_back(
    comprl_bank: Run, folder: Path, target: tuple[str, ...], tmp_path: Path
) -> None:
    assert comprl_bank("verify", *target).out == "6 entries, no problems found\n"
    assert comprl_bank("export", tmp_path / "back", *target).code == 0
    # An imported entry is no answer of a run's extractor.
    imported = [entry.model_copy(update={"record_id": ""}) for entry in contents(folder)]
    assert read_snapshot(tmp_path / "back", None).entries == imported
    there, back = (read_snapshot(tmp_path / name, None) for name in ("exported", "back"))
    assert there.vectors.tobytes() == back.vectors.tobytes() and there.embedding == back.embedding


def test_commands_that_need_no_model(comprl_bank: Run, target: tuple[str, ...]) -> None:
    listed = comprl_bank("list", *target, "--json").objects
    assert [entry["created_step"] for entry in listed] == [0, 2, 3, 4, 5, 6]
    stats = json.loads(comprl_bank("stats", *target, "--json").out)
    assert (stats["size"], stats["uses"], stats["quarantined"], stats["embedding"]["model"]) == (6, 16, 1, "fake")
    assert "better lesson" in comprl_bank("show", listed[-1]["id"][:8], *target).out
    assert comprl_bank("quarantine", *target, "--where", "uses=1", "--yes").code == 0
    assert comprl_bank("release", *target, "--where", "uses=0", "--yes").code == 0
    assert comprl_bank("delete", *target, "--where", "uses>=10", "--yes").out.endswith("delete 1 of 6 entries: done\n")
    after = {entry["created_step"]: entry["quarantined"] for entry in comprl_bank("list", *target, "--json").objects}
    assert after == {2: "", 3: "by hand", 4: "", 5: "", 6: ""}


def test_search_needs_the_endpoint_of_the_embedder(
    comprl_bank: Run, target: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = comprl_bank("search", "a key", *target)
    message = "embedder 'fake' was served by an endpoint; pass its address with --embedder-url"
    assert refused.code == 2 and message in refused.err
    asked: list[Any] = []

    async def make(model: str, **settings: Any) -> FakeEmbedder:
        asked.append((model, settings))
        return FakeEmbedder(model)

    monkeypatch.setattr(bank_embedder, "make_embedder", make)
    found = comprl_bank(
        "search", "search for the key", *target, "--embedder-url", "http://h/v1", "--limit", "1", "--json"
    )
    assert found.objects[0]["title"] == "better lesson"
    ((model, settings),) = asked
    prompts = {"query_prompt": None, "document_prompt": None}
    assert model == "fake" and settings == {"url": "http://h/v1", **prompts, "documents": "text"}


async def test_reading_works_and_writing_is_refused_while_a_run_writes(url: str, target: tuple[str, ...]) -> None:
    from test_cli_bank_live import comprl_bank

    config = BankConfig(url=url, collection=target[3])
    run = await ExperienceBank.open(config, FakeEmbedder())
    try:
        listed = await asyncio.to_thread(comprl_bank, "list", *target, "--json")
        assert listed.returncode == 0 and len(listed.stdout.splitlines()) == 6
        refused = await asyncio.to_thread(comprl_bank, "delete", *target, "--where", "uses=0", "--yes")
        waiting, error = refused.stderr.splitlines()  # the run could have died: its next renewal tells
        assert refused.returncode == 2 and "for the lease of its writer to expire or to be renewed" in waiting
        assert f"is being written by process {os.getpid()}" in error
    finally:
        await run.close()
    assert (await asyncio.to_thread(comprl_bank, "delete", *target, "--where", "uses>=10", "--yes")).returncode == 0
