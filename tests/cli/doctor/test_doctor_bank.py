"""Ways in which a bank or an embedder is out of reach or wrong, and what the doctor says to each."""

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from chat_endpoint import refusal
from embedding_endpoint import EmbeddingEndpoint
from fake_embedder import FakeEmbedder
from qdrant_double import QdrantDouble

from verl_comprl.cli.doctor import bank as bank_checks
from verl_comprl.cli.doctor.finding import Problem
from verl_comprl.cli.doctor.setup import Setup
from verl_comprl.experience import BankConfig, ExperienceBank


def test_occupied_folder(doctor: Any, tmp_path: Path) -> None:
    async def check() -> Any:
        bank = await ExperienceBank.open(BankConfig(path=str(tmp_path / "bank")), FakeEmbedder())
        try:
            return await asyncio.to_thread(doctor, "bank", f"comprl.bank.path={tmp_path}/bank")
        finally:
            await bank.close()

    finding = asyncio.run(check())
    assert finding["status"] == "failed" and f"is already open in this process, {os.getpid()}" in finding["message"]
    assert finding["remedy"] == "comprl.bank.path=OTHER_FOLDER"


def test_folder_without_a_bank_is_left_as_it_is(doctor: Any, tmp_path: Path) -> None:
    assert doctor("bank", f"comprl.bank.path={tmp_path}/bank")["status"] == "ok"
    assert list(tmp_path.iterdir()) == []


def test_unreachable_qdrant(doctor: Any) -> None:
    with socket.socket() as taken:  # bound, but nothing listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        finding = doctor("bank", f"comprl.bank.url={url}")
    assert finding["status"] == "failed" and url in finding["message"]
    assert "docker run" in finding["remedy"] and "comprl.bank.url=OTHER_URL" in finding["remedy"]
    assert finding["remedy"].endswith(f"; to look: curl {url}")


def test_unreachable_embedder(doctor: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        finding = doctor("embedder", f"comprl.embedder.url={url}", "comprl.embedder.model=tiny")
    assert finding["status"] == "failed" and url in finding["message"]
    assert "comprl.embedder.url=OTHER_URL" in finding["remedy"] and finding["remedy"].endswith(f"curl {url}/models")
    without = finding["remedy"].partition(", or ")[2].partition(" for ")[0].rpartition(", or ")[2].split()
    assert without == ["comprl.embedder.url=", "comprl.embedder.model=builtin"]
    embedder = Setup((f"comprl.embedder.url={url}", *without)).comprl.embedder
    assert (embedder.url, embedder.model) == ("", "builtin")


@pytest.mark.parametrize(
    ("status", "remedy"), [(401, "export OPENAI_API_KEY=…"), (404, "set comprl.embedder.model to one of its models")]
)
def test_an_embedder_that_its_server_refuses(status: int, remedy: str, doctor: Any) -> None:
    served = EmbeddingEndpoint()
    served.failures.append(refusal(status))
    served.server.start()
    try:
        finding = doctor("embedder", f"comprl.embedder.url={served.url}", "comprl.embedder.model=tiny")
    finally:
        served.server.stop()
    assert finding["status"] == "failed" and finding["remedy"].startswith(remedy)


def test_bank_on_a_server(doctor: Any) -> None:
    double = QdrantDouble().start()
    place = (f"comprl.bank.url={double.url}", "comprl.bank.collection=mine")
    try:
        finding = doctor("bank", *place)
        assert finding["status"] == "ok" and "the run makes the collection mine" in finding["message"]
        assert not double.aliases  # nothing was created

        async def while_written() -> Any:
            config = BankConfig(url=double.url, collection="mine")
            bank = await ExperienceBank.open(config, FakeEmbedder())
            try:
                return await asyncio.to_thread(doctor, "bank", *place)
            finally:
                await bank.close()

        finding = asyncio.run(while_written())
        assert finding["status"] == "failed" and "is being written by process" in finding["message"]
        assert finding["remedy"] == "comprl.bank.collection=OTHER_NAME"
        assert "has 0 entries" in doctor("bank", *place)["message"]
    finally:
        double.close()


def test_another_embedder_than_that_of_a_bank_on_a_server() -> None:
    double = QdrantDouble().start()

    async def make() -> None:
        config = BankConfig(url=double.url, collection="mine")
        await (await ExperienceBank.open(config, FakeEmbedder())).close()

    place = (f"comprl.bank.url={double.url}", "comprl.bank.collection=mine")
    setup = Setup((*place, "comprl.embedder.model=tiny", "comprl.embedder.url=http://127.0.0.1:1/v1"))
    setup.identity = {"model": "tiny", "dimension": 64}
    try:
        asyncio.run(make())
        with pytest.raises(Problem) as caught:
            bank_checks.check_bank(setup)
    finally:
        double.close()
    command = f"comprl bank reembed --url {double.url} --collection mine"
    assert caught.value.remedy == f"{command} --embedder tiny --embedder-url http://127.0.0.1:1/v1"


def test_wrong_embedding_identity(tmp_path: Path) -> None:
    async def make() -> None:
        await (await ExperienceBank.open(BankConfig(path=str(tmp_path / "bank")), FakeEmbedder())).close()

    asyncio.run(make())
    setup = Setup((f"comprl.bank.path={tmp_path}/bank",))
    setup.identity = {"model": "other", "dimension": 64}
    with pytest.raises(Problem) as caught:
        bank_checks.check_bank(setup)
    assert "'fake'" in str(caught.value) and "'other'" in str(caught.value)
    assert caught.value.remedy == f"comprl bank reembed --path {tmp_path}/bank --embedder builtin"
