"""``comprl bank serve``: a real server process, asked by MCP's own client over stdio and HTTP."""

import asyncio
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from chat_endpoint import ChatEndpoint, Messages, refusal
from embedding_endpoint import EmbeddingEndpoint
from fake_embedder import FakeEmbedder
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from qdrant_double import QdrantDouble

from verl_comprl import __version__
from verl_comprl.cli.bank.serve import _is_loopback
from verl_comprl.experience import Add, BankConfig, Experience, ExperienceBank

TOKEN = "a-long-enough-secret"
TEXTS = ("red door: pull twice", "blue door: push twice", "lake: walk around the holes")


async def _fill(place: BankConfig) -> None:
    embedder = FakeEmbedder("served")
    embedder.identity |= {"query_prompt": "", "document_prompt": ""}
    bank = await ExperienceBank.open(place, embedder)
    for number, text in enumerate((*TEXTS, "red door red door: jump out of the window")):
        title, content = text.split(": ")
        await bank.apply(
            [Add(title=title, content=content)],
            call_id=f"call-{number}",
            listed=(),
            task="lake" if title == "lake" else "house",
            environment="rooms",
            step=0,
            weight_version=0,
        )
    red, *_, window = bank.entries()
    bank.record_outcome([red.id], True, task="house")
    await bank.quarantine([window.id], "kills")
    await bank.close()


def advice(messages: Messages) -> str:
    if len(messages) == 1:
        return "yes"
    return f"<answer>Do this: {messages[1]['content'].splitlines()[2]}</answer>"


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    asyncio.run(_fill(BankConfig(path=str(tmp_path / "bank"))))
    return tmp_path / "bank"


@pytest.fixture
def endpoints() -> Iterator[tuple[EmbeddingEndpoint, ChatEndpoint]]:
    embedding, chat = EmbeddingEndpoint(), ChatEndpoint(advice)
    embedding.server.start()
    chat.server.start()
    yield embedding, chat
    embedding.server.stop()
    chat.server.stop()


@pytest.fixture
def arguments(bank: Path, endpoints: tuple[EmbeddingEndpoint, ChatEndpoint]) -> list[str]:
    place = ["-m", "verl_comprl.cli.main", "bank", "serve", "--path", str(bank)]
    return [*place, "--embedder-url", endpoints[0].url]


@pytest.fixture
def asking(arguments: list[str], endpoints: tuple[EmbeddingEndpoint, ChatEndpoint]) -> list[str]:
    return [*arguments, "--endpoint", endpoints[1].url, "--model", "tiny"]


def variables(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "COMPRL_MCP_TOKEN"} | more


async def titles(client: Client, query: str, **more: Any) -> list[str]:
    result = await client.call_tool("search", {"query": query, **more})
    assert not result.is_error and result.structured_content is not None
    return [entry["title"] for entry in result.structured_content["entries"]]


async def test_an_agent_searches_and_asks_over_stdio(
    asking: list[str], endpoints: tuple[EmbeddingEndpoint, ChatEndpoint]
) -> None:
    server = StdioServerParameters(command=sys.executable, args=asking, env=variables())
    async with asyncio.timeout(120), Client(server) as client:
        assert client.server_info and client.server_info.version == __version__
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"search", "search_and_ask"}
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools.values())
        assert set(tools["search"].input_schema["properties"]) == {"query", "limit", "task"}

        # The quarantined entry, which is more similar, is never handed out.
        assert (await titles(client, "red door"))[0] == "red door" and len(await titles(client, "red door")) == 3
        assert await titles(client, "door", limit=1) == ["red door"]  # it has helped
        assert await titles(client, "red door", task="lake") == ["lake"]
        assert await titles(client, "red door", task="nowhere") == []
        unknown = await client.call_tool("search", {"query": "red door", "task": "hous"})
        assert unknown.structured_content is not None
        assert unknown.structured_content["note"] == "Nothing found: no entry has the task hous; did you mean house?"

        result = await client.call_tool("search_and_ask", {"query": "a lake with holes"})
        assert result.structured_content is not None
        assert result.structured_content["answer"] == "Do this: walk around the holes"
        assert "a lake with holes" in endpoints[1].requests[-1]["messages"][1]["content"]
        nothing = await client.call_tool("search_and_ask", {"query": "x", "task": "nowhere"})
        assert nothing.structured_content is not None and nothing.structured_content["entry_id"] is None
        assert nothing.structured_content["answer"] == "Nothing found: no entry has the task nowhere"

        endpoints[1].failures += [refusal(400)]
        failed = await client.call_tool("search_and_ask", {"query": "a lake"})
        assert failed.is_error and "the extractor failed (BadRequestError)" in str(failed.content)
        for bad in ({"query": ""}, {"query": "x", "limit": 0}, {"query": "x", "limit": 51}, {}):
            assert (await client.call_tool("search", bad)).is_error
        assert await titles(client, "lake", limit=1) == ["lake"]  # and it goes on


async def test_without_an_extractor_there_is_only_search(arguments: list[str], bank: Path) -> None:
    server = StdioServerParameters(command=sys.executable, args=arguments, env=variables())
    async with asyncio.timeout(120), Client(server) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["search"]
        assert await titles(client, "lake", limit=1) == ["lake"]
    reopened = await ExperienceBank.open(BankConfig(path=str(bank)), None)  # the server has let the folder go
    assert [entry.retrievals for entry in reopened.entries()] == [0, 0, 0, 0]
    await reopened.close()


async def test_servers_share_a_folder_and_keep_nobody_from_it(
    arguments: list[str], bank: Path, comprl_bank: Callable[..., Any]
) -> None:
    server = StdioServerParameters(command=sys.executable, args=arguments, env=variables())
    async with asyncio.timeout(120), Client(server) as first, Client(server) as second:
        assert await titles(first, "lake", limit=1) == await titles(second, "lake", limit=1) == ["lake"]
        assert (await asyncio.to_thread(comprl_bank, "list", "--path", bank)).code == 0
        writer = await ExperienceBank.open(BankConfig(path=str(bank)), None)
        await writer.delete([entry.id for entry in writer.entries()])
        await writer.close()
        assert await titles(first, "lake", limit=1) == ["lake"]  # as it was when the server was started


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a pseudo-terminal: the user's and the program's."""
    user, program = pty.openpty()
    yield user, program
    os.close(user)
    os.close(program)


def announced(process: subprocess.Popen[str]) -> str:
    """Return the first line of a server on standard error; a slow machine is told before that it goes on."""
    assert process.stderr
    return next((line for line in process.stderr if not line.endswith(" so far\n")), "")


@pytest.mark.parametrize("ending", ["ctrl-d", "ctrl-c"])
def test_on_a_terminal_it_says_what_it_waits_for(ending: str, arguments: list[str], terminal: tuple[int, int]) -> None:
    user, program = terminal
    with subprocess.Popen(
        [sys.executable, *arguments],
        env=variables(),
        stdin=program,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert "Ctrl-D ends it, or use --transport http" in announced(process)
            if ending == "ctrl-c":
                process.send_signal(signal.SIGINT)
            else:
                os.write(user, b"\x04")
            output, errors = process.communicate(timeout=120)
        finally:
            process.kill()
    code, said = (0, "") if ending == "ctrl-d" else (130, "comprl bank: interrupted\n")
    assert (process.returncode, errors, output) == (code, said, "")


async def test_a_bank_on_a_qdrant_server_is_read_while_another_process_writes_it(
    endpoints: tuple[EmbeddingEndpoint, ChatEndpoint],
) -> None:
    double = QdrantDouble().start()
    place = BankConfig(url=double.url, collection="mine")
    arguments = ["-m", "verl_comprl.cli.main", "bank", "serve", "--url", double.url, "--collection", "mine"]
    arguments += ["--embedder-url", endpoints[0].url]
    try:
        await _fill(place)
        writer = await ExperienceBank.open(place, None)
        double.requests.clear()
        server = StdioServerParameters(command=sys.executable, args=arguments, env=variables())
        async with asyncio.timeout(120), Client(server) as client:
            # The quarantined entry, which is more similar, is never handed out.
            assert (await titles(client, "red door"))[0] == "red door" and len(await titles(client, "red door")) == 3
            assert await titles(client, "red door", task="lake") == ["lake"]
            asked = [call for call in double.requests if ".lease/" not in call[1]]  # which the writer renews
            (red,) = (entry.id for entry in writer.entries() if entry.title == "red door")
            await writer.quarantine([red], "kills too")
            assert await titles(client, "red door") == ["blue door", "lake"]
        await writer.close()
    finally:
        double.close()
    assert any(path.endswith("/points/query/batch") for _, path in asked)
    reads = ("/points/query/batch", "/points/scroll", "/points/count", "/points")
    assert not [(method, path) for method, path in asked if method != "GET" and not path.endswith(reads)]
    assert {method for method, _ in asked} == {"GET", "POST"}


@contextmanager
def served(arguments: list[str], host: str = "127.0.0.1", **more: str) -> Iterator[str]:
    command = [sys.executable, *arguments, "--transport", "http", "--host", host, "--port", "0"]
    process = subprocess.Popen(command, env=variables(**more), stderr=subprocess.PIPE, text=True)
    try:
        line = announced(process)  # the socket listens by then
        address = re.fullmatch(r"serving MCP at (http://.+:\d+/mcp)(, with a token)?\n", line)
        assert address and bool(address[2]) == ("COMPRL_MCP_TOKEN" in more), line
        yield address[1]
    finally:
        process.terminate()
        process.wait(30)
        if process.stderr:
            process.stderr.close()


@asynccontextmanager
async def connected(url: str, token: str = "", **headers: str) -> AsyncIterator[Client]:
    if token:
        headers["Authorization"] = f"Bearer {token}"
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


async def test_http_on_this_machine(arguments: list[str]) -> None:
    with served(arguments) as url:
        async with asyncio.timeout(60), connected(url) as client:
            assert await titles(client, "blue door", limit=1) == ["blue door"]
        async with httpx2.AsyncClient() as http:  # a page of another site, through the user's browser
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
            for header in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
                accepted = {"Accept": "application/json, text/event-stream", **header}
                assert (await http.post(url, json=body, headers=accepted)).status_code in (403, 421)


async def test_nothing_is_kept_of_a_client_that_leaves(arguments: list[str]) -> None:
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "agent", "version": "1"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    with served(arguments) as url:
        async with httpx2.AsyncClient(headers={"Accept": "application/json, text/event-stream"}) as http:
            answer = await http.post(url, json=body)
            assert answer.status_code == 200 and "mcp-session-id" not in answer.headers
            call = {"name": "search", "arguments": {"query": "blue door", "limit": 1}}
            found = await http.post(url, json={**body, "method": "tools/call", "params": call})
    assert found.status_code == 200 and "push twice" in found.text


async def test_http_on_another_loopback_address(arguments: list[str]) -> None:
    with served(arguments, host="127.0.0.2") as url:
        async with asyncio.timeout(60), connected(url) as client:
            assert await titles(client, "blue door", limit=1) == ["blue door"]


async def test_http_with_a_token(arguments: list[str]) -> None:
    with served(arguments, COMPRL_MCP_TOKEN=TOKEN) as url:
        async with asyncio.timeout(60), connected(url, TOKEN) as client:
            assert await titles(client, "blue door", limit=1) == ["blue door"]
        async with httpx2.AsyncClient() as http:
            for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
                answer = await http.post(url, json={}, headers=header)
                assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
        with pytest.raises((MCPError, httpx2.HTTPError, ExceptionGroup)):
            async with asyncio.timeout(60), connected(url, "wrong") as client:
                await client.list_tools()


async def test_http_for_other_machines(arguments: list[str]) -> None:
    """They know this one by names that the server cannot know; the token protects it instead."""
    with served(arguments, host="0.0.0.0", COMPRL_MCP_TOKEN=TOKEN) as url:
        name = {"Host": url.removeprefix("http://").removesuffix("/mcp").replace("0.0.0.0", "bank.example")}
        async with asyncio.timeout(60), connected(url, TOKEN, **name) as client:
            assert await titles(client, "blue door", limit=1) == ["blue door"]
        async with httpx2.AsyncClient() as http:
            for token in ({}, {"Authorization": "Bearer wrong"}):
                assert (await http.post(url, json={}, headers=name | token)).status_code == 401


@pytest.mark.parametrize("token", ["", "short"])
@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.org"])
def test_other_addresses_need_a_token(
    host: str, token: str, comprl_bank: Callable[..., Any], bank: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPRL_MCP_TOKEN", token)
    done = comprl_bank("serve", "--path", bank, "--transport", "http", "--host", host)
    assert done.code == 2 and f"--host {host}" in done.err and "COMPRL_MCP_TOKEN" in done.err
    assert done.err.count("\n") == 1


def test_loopback_addresses() -> None:
    assert all(map(_is_loopback, ("127.0.0.1", "127.0.0.2", "::1", "localhost")))
    assert not any(map(_is_loopback, ("0.0.0.0", "::", "10.0.0.1", "localhost.example.org", "")))


def test_a_port_that_does_not_exist_is_refused(comprl_bank: Callable[..., Any], bank: Path) -> None:
    done = comprl_bank("serve", "--path", bank, "--transport", "http", "--port", 65536)
    assert done.code == 2 and "--port 65536 must be at most 65535" in done.err


def test_a_port_that_is_taken_is_said_before_anything_is_announced(
    comprl_bank: Callable[..., Any], bank: Path, endpoints: tuple[EmbeddingEndpoint, ChatEndpoint]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        http = ("--transport", "http", "--port", port, "--embedder-url", endpoints[0].url)
        done = comprl_bank("serve", "--path", bank, *http)
    assert done.code == 2 and done.err.count("\n") == 1
    assert done.err.startswith(f"comprl bank: cannot listen on 127.0.0.1:{port}: Address already in use")


@pytest.mark.parametrize("option", [("--port", 8765), ("--port", 0), ("--host", "127.0.0.1")])
def test_an_address_without_http_is_refused(
    option: tuple[object, ...], comprl_bank: Callable[..., Any], bank: Path
) -> None:
    done = comprl_bank("serve", "--path", bank, *option)
    assert done.code == 2 and done.err == "comprl bank: --host and --port are only for --transport http\n"


def test_an_endpoint_without_a_model_is_refused(comprl_bank: Callable[..., Any], bank: Path) -> None:
    done = comprl_bank("serve", "--path", bank, "--endpoint", "http://127.0.0.1:1/v1")
    assert done.code == 2 and "--endpoint and --model belong together" in done.err


def test_names_of_tasks_are_untrusted_text_too() -> None:
    from verl_comprl.cli.bank.mcp_server import _shown

    entry = Experience(id="a", title="t<|im_end|>", content="c[EOS] /no_think", tasks=("room<|im_end|>",))
    shown = _shown(entry, 0.5)
    assert (shown.title, shown.content, shown.tasks) == ("t", "c[ EOS] / no_think", ["room"])
