"""Runs the quick commands of README and docs in the order of their page, on a copy of a run."""

import asyncio
import io
import json
import shlex
import shutil
import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_endpoint import ChatEndpoint, Messages
from documented import ROOT, Command, Page, pages

from verl_comprl.cli.main import main
from verl_comprl.experience import Add, BankConfig, ExperienceBank, make_embedder

QUICK = ("bank", "env", "view", "watch", "plot", "completion")
"""The others need trained models or a Ray of their own, or write data (``test_commands``)."""
ELSEWHERE = {
    "--url": "a Qdrant server: tests/cli/bank/test_cli_bank_server.py",
    "http": "serves until it is interrupted: tests/cli/bank/test_cli_bank_serve.py",
}
"""Words of commands that are run by other tests."""
RUNS = ("RUN", "RUN_A", "RUN_B", "outputs/miniature/quickstart", "outputs/miniature/runs/complementary-3-1")
"""Folders of a run that the pages name, each a copy of the same run here."""
ENTRY = "3f2a"
PLACES = {
    "[RUN": "RUN_A",
    "…]": "RUN_B",
    "outputs/miniature/runs/*-3-*": "outputs/miniature/runs/complementary-3-1",  # the shell's work
    "DIR": "figures",
    "FILE": "page.html",
    "BANK": "RUN/bank",
    "FOLDER": "copy",
    "examples/run": "RUN",
    "Qwen/Qwen3-Embedding-0.6B": "builtin",  # a download
}
"""What stands for words of the pages that a reader replaces. Addresses of endpoints and ``ENTRY`` are added."""


def answer(messages: Messages) -> str:
    operation = {"operation": "add", "title": "Locked doors", "content": "Look for the key first."}
    return f"<answer>{json.dumps([operation])}</answer>" if len(messages) > 1 else "yes"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    chat = ChatEndpoint(answer)
    chat.server.start()
    yield chat.url
    chat.server.stop()


async def fill(folder: Path) -> str:
    """Write a bank of some entries of the run; returns an entry's id."""
    bank = await ExperienceBank.open(BankConfig(path=str(folder)), await make_embedder("builtin"))
    lines = (ROOT / "examples/run/experience.jsonl").read_text(encoding="utf-8").splitlines()
    written = [json.loads(line) for line in lines[:40]]
    for entry in (entry for entry in written if entry["event"] == "written"):
        await bank.apply(
            [Add(title=entry["title"], content=entry["content"])],
            call_id=entry["call"],
            listed=(),
            task=entry["task"],
            environment="vaults",
            step=entry["step"],
            weight_version=0,
        )
    used, *_, last = (entry.id for entry in bank.entries())
    for number in range(10):
        bank.record_outcome([used], success=number == 0, task="room")
    await bank.close()
    return last


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A reader's folder, and the id of an entry."""
    folder = tmp_path_factory.mktemp("home")
    entry = asyncio.run(fill(folder / "bank"))
    for name in RUNS:
        shutil.copytree(ROOT / "examples/run", folder / name)
        shutil.copytree(folder / "bank", folder / name / "bank")
    (block,) = Page(ROOT / "docs/distill.md").blocks("json")
    (folder / "episodes.jsonl").write_text(block)
    return folder, entry


def runs_here(command: Command) -> bool:
    complete = command.in_block or any(word.startswith(("RUN", "BANK")) for word in command.words)
    return complete and arguments(command)[0] in QUICK and not ELSEWHERE.keys() & set(command.words)


def arguments(command: Command) -> list[str]:
    """Return what follows ``comprl``; ``[""]`` if another program is called."""
    words = list(command.words)
    if words[0] == "eval":
        words = shlex.split(words[1].removeprefix("$(").removesuffix(")"))
    return words[1:] if words[0] == "comprl" and len(words) > 1 else [""]


QUICK_COMMANDS = {
    page.name: found for page in pages() if (found := [item for item in page.commands if runs_here(item)])
}


@pytest.mark.slow
@pytest.mark.parametrize("page", QUICK_COMMANDS)
def test_the_quick_commands_of_a_page_run(
    page: str,
    home: tuple[Path, str],
    endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, entry = home
    places = PLACES | {ENTRY: entry[:8]}
    places |= {url: endpoint for url in ("http://127.0.0.1:8000/v1", "https://api.openai.com/v1")}
    monkeypatch.chdir(shutil.copytree(folder, tmp_path / "home"))
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setattr(webbrowser, "open", lambda _: True)
    for command in QUICK_COMMANDS[page]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"y\n")))
        code = main([places.get(word, word) for word in arguments(command)])
        assert code == 0, f"{command}\n{capsys.readouterr().err}"


def test_most_quick_commands_are_run() -> None:
    found = [arguments(command) for commands in QUICK_COMMANDS.values() for command in commands]
    assert {words[0] for words in found} == set(QUICK) and len(found) > 35
    actions = {words[1] for words in found if words[0] == "bank"}
    assert actions >= {"stats", "list", "show", "search", "export", "import", "quarantine", "release", "delete"}
    assert actions >= {"verify", "reembed", "distill", "serve"}
