"""Ways in which a bank or an embedder is out of reach or wrong, and what the doctor says to each."""

import asyncio
import os
import shlex
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
from verl_comprl.cli.main import main
from verl_comprl.experience import BankConfig, ExperienceBank, make_embedder


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
    assert caught.value.remedy.startswith(f"{command} --embedder tiny --embedder-url http://127.0.0.1:1/v1 ")


async def _make_bank(folder: Path) -> None:
    await (await ExperienceBank.open(BankConfig(path=str(folder)), FakeEmbedder())).close()


def test_wrong_embedding_identity(tmp_path: Path) -> None:
    asyncio.run(_make_bank(tmp_path / "bank"))
    setup = Setup((f"comprl.bank.path={tmp_path}/bank",))
    setup.identity = {"model": "other", "dimension": 64}
    with pytest.raises(Problem) as caught:
        bank_checks.check_bank(setup)
    assert "'fake'" in str(caught.value) and "'other'" in str(caught.value)
    assert caught.value.remedy.startswith(f"comprl bank reembed --path {tmp_path}/bank --embedder builtin ")


@pytest.mark.slow
def test_the_remedy_for_another_embedding_mends_it(tmp_path: Path) -> None:
    """Model and weights are the same: the command must name what differs, an empty prompt too."""

    async def make() -> None:
        embedder = await make_embedder("builtin", device="cpu", documents="title", query_prompt="find: ")
        await (await ExperienceBank.open(BankConfig(path=str(tmp_path / "a bank")), embedder)).close()

    asyncio.run(make())
    setup = Setup((f"comprl.bank.path='{tmp_path}/a bank'", "comprl.embedder.device=cpu"))
    bank_checks.check_embedder(setup)
    with pytest.raises(Problem, match="documents was 'title', is 'text', query_prompt was 'find: ', is ''") as caught:
        bank_checks.check_bank(setup)
    program, *arguments = shlex.split(caught.value.remedy)
    assert program == "comprl" and main(arguments) == 0
    assert "has 0 entries" in bank_checks.check_bank(setup)


def test_a_place_that_the_run_would_refuse(doctor: Any, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("notes")
    finding = doctor("bank", f"comprl.bank.path='{tmp_path}/a file'")
    assert finding["status"] == "failed" and "is a file and not an experience bank" in finding["message"]
    finding = doctor("bank", f"comprl.bank.path={tmp_path}")
    assert finding["status"] == "failed" and "holds other files (a file)" in finding["message"]
    assert finding["remedy"] == "comprl.bank.path=OTHER_FOLDER"
    asyncio.run(_make_bank(tmp_path / "a run/bank"))
    finding = doctor("bank", f"comprl.bank.path={tmp_path}/a run")  # the folder of a run instead of its bank
    assert finding["status"] == "failed"
    (override,) = shlex.split(finding["remedy"])
    assert override == f"comprl.bank.path={tmp_path}/a run/bank" and doctor("bank", override)["status"] == "ok"
    (tmp_path / "empty").mkdir()
    assert "empty has no bank yet, the run makes it" in doctor("bank", f"comprl.bank.path={tmp_path}/empty")["message"]
