"""Documented commands, run in the order of their page on a copy of a run; ``not_run`` has the others."""

import asyncio
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_endpoint import ChatEndpoint, Messages
from documented import ROOT, Command, Page, pages
from not_run import NOT_RUN, not_run_as

from verl_comprl.cli.main import main
from verl_comprl.experience import Add, BankConfig, ExperienceBank, make_embedder

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
"""Substitutes for words of the pages that a reader replaces. Addresses of endpoints and ``ENTRY`` are added."""


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
    (arm,) = (block for block in Page(ROOT / "docs/extending.md").blocks("yaml") if "arm: curious" in block)
    (folder / "my_settings/arm").mkdir(parents=True)
    (folder / "my_settings/arm/curious.yaml").write_text(arm)
    return folder, entry


def runs_here(command: Command) -> bool:
    named = arguments(command)[0] and any(word.startswith(("RUN", "BANK")) for word in command.words)
    return bool(command.in_block or named) and not_run_as(command) is None


def arguments(command: Command) -> list[str]:
    """Return what follows ``comprl``; ``[""]`` if another program is called."""
    words = list(command.words)
    if words[0] == "eval":
        words = shlex.split(words[1].removeprefix("$(").removesuffix(")"))
    return words[1:] if words[0] == "comprl" and len(words) > 1 else [""]


def run(words: list[str]) -> int:
    if words[0] != "train":
        return main(words)
    # It chooses a device for its whole process.
    program = [sys.executable, "-m", "verl_comprl.cli.main", *words]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600, check=False)
    print(done.stderr, file=sys.stderr)
    return done.returncode


RUN_HERE = {page.name: found for page in pages() if (found := [item for item in page.commands if runs_here(item)])}


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN_HERE)
def test_the_commands_of_a_page_run(
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
    for command in RUN_HERE[page]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"y\n")))
        code = run([places.get(word, word) for word in arguments(command)])
        assert code == 0, f"{command}\n{capsys.readouterr().err}"


def test_every_command_is_run_or_has_a_reason() -> None:
    """A new command in a block is run without further ado; the table holds nothing that no page has any more.

    A sentence may mention a command of ours, which is then parsed; other programs need a reason there, too.
    """
    found = [command for page in pages() for command in page.commands]
    assert NOT_RUN.keys() == {not_run_as(command) for command in found} - {None}
    others = [command for command in found if command.words[0] != "comprl" and not runs_here(command)]
    assert [str(command) for command in others if not_run_as(command) is None] == []
    tests = {file for why in NOT_RUN.values() for file in re.findall(r"tests/[\w/]+\.py", why)}
    assert len(tests) > 20 and [file for file in tests if not (ROOT / file).is_file()] == []


def test_a_workflow_calls_what_is_left_to_it() -> None:
    left = {pattern: re.findall(r"\.github/workflows/\w+\.yml", why) for pattern, why in NOT_RUN.items()}
    calls = {(pattern, file) for pattern, files in left.items() for file in files}
    assert len(calls) > 4
    assert [call for call in calls if f"- run: {call[0]}" not in (ROOT / call[1]).read_text(encoding="utf-8")] == []


def test_most_commands_of_ours_are_run() -> None:
    found = [arguments(command) for commands in RUN_HERE.values() for command in commands]
    assert {words[0] for words in found} == {"bank", "env", "view", "watch", "plot", "completion", "train"}
    assert len(found) > 35
    actions = {words[1] for words in found if words[0] == "bank"}
    assert actions >= {"stats", "list", "show", "search", "export", "import", "quarantine", "release", "delete"}
    assert actions >= {"verify", "reembed", "distill", "serve"}
