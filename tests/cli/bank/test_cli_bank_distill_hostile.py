"""``comprl bank distill`` with an endpoint that answers what could harm, and in a folder that others have made."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_endpoint import ChatEndpoint, Messages
from fake_embedder import FakeEmbedder
from starlette.responses import Response

from verl_comprl.cli.bank import embedder as bank_embedder

Run = Callable[..., Any]
EVIL = "\x1b[2J\u202eowned\x07\x9b31m\x7f"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatEndpoint]:
    async def fake(*_: Any, **__: Any) -> FakeEmbedder:
        return FakeEmbedder()

    def lesson(messages: Messages) -> str:
        return '<answer>[{"operation": "add", "title": "red", "content": "press red"}]</answer>'

    monkeypatch.setattr(bank_embedder, "make_embedder", fake)
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    found = ChatEndpoint(lesson)
    found.server.start()
    yield found
    found.server.stop()


@pytest.fixture
def distill(comprl_bank: Run, endpoint: ChatEndpoint, folder: Path, tmp_path: Path) -> Callable[[], Any]:
    """Distil one episode into the bank in ``folder``."""
    messages = [{"role": "user", "content": "a door"}, {"role": "assistant", "content": "push"}]
    file = tmp_path / "episodes.jsonl"
    file.write_text(json.dumps({"id": "a", "success": True, "goal": "open it", "messages": messages}))
    given = ("--path", folder, "--episodes", file, "--endpoint", endpoint.url, "--model", "tiny")
    return lambda: comprl_bank("distill", *given, "--embedder-url", "http://127.0.0.1:1")


def test_an_endpoints_error_cannot_control_the_terminal(endpoint: ChatEndpoint, distill: Callable[[], Any]) -> None:
    reply = endpoint.reply

    def failing_next(messages: Messages) -> str:
        endpoint.failures += [Response(EVIL, 400)] * 9
        return reply(messages)

    endpoint.reply = failing_next
    done = distill()
    assert done.code == 1 and "last failure: " in done.err
    again = distill()  # where the check fails
    assert again.code == 2 and "owned" in again.err
    assert not set(done.err + again.err) & set("\x1b\u202e\x07\x9b\x7f")


@pytest.mark.parametrize("status", [200, 400])
def test_a_deeply_nested_answer_is_one_line(endpoint: ChatEndpoint, distill: Callable[[], Any], status: int) -> None:
    endpoint.failures += [Response("[" * 100_000, status, media_type="application/json")] * 9
    done = distill()
    assert done.code == 2 and done.err.count("\n") == 1 and "--model tiny: " in done.err


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder"])
def test_a_journal_that_is_no_file_of_the_bank_is_refused(
    kind: str, endpoint: ChatEndpoint, distill: Callable[[], Any], folder: Path, tmp_path: Path
) -> None:
    journal, mine = folder / "distilled.jsonl", tmp_path / "mine"
    if kind == "pipe":
        os.mkfifo(journal)
    elif kind == "folder":
        journal.mkdir()
    else:
        journal.symlink_to(mine)
        if kind == "link":
            mine.write_text("mine")
    done = distill()
    assert done.code == 2 and f"{journal} is a link or no file" in done.err and done.err.count("\n") == 1
    assert len(endpoint.requests) <= 1  # the check
    assert mine.read_text() == "mine" if kind == "link" else not mine.exists()


def test_lines_of_another_form_in_a_journal_count_for_nothing(distill: Callable[[], Any], folder: Path) -> None:
    (folder / "distilled.jsonl").write_text('{"id": [1]}\n{"id": {}}\n[1]\n' + "[" * 100_000 + "\n")
    done = distill()
    assert done.code == 0 and done.out.startswith("1 episodes: 1 gave experience")
