"""A made run, an untrusted one, and a headless Chromium that shows both."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_files import copy_changed
from visits import no_browser

from benchmarks.chromium import Tab, chromium, find_chromium
from benchmarks.made_run import make_run
from verl_comprl.viewer.view import write_view

EVIL = (
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 2'>",
    "--><!--<script>&lt;&amp;%TITLE% \u2028 ]]> javascript:window.hacked=3",
)


def poison(value: Any, text: str) -> Any:
    """Return a record in which every free text has ``text`` at its end."""
    free = {"title", "content", "text", "observation", "response", "query", "answer", "goal", "input", "output", "task"}
    if isinstance(value, dict):
        return {
            key: f"{item}{text}" if key in free and isinstance(item, str) else poison(item, text)
            for key, item in value.items()
        }
    return [poison(item, text) for item in value] if isinstance(value, list) else value


@pytest.fixture(scope="session")
def evil_texts() -> tuple[str, ...]:
    """What is at the end of every text of the run ``evil``."""
    return EVIL


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six steps of 24 episodes and about 8 entries."""
    folder = tmp_path_factory.mktemp("viewer") / "made run"
    make_run(folder, steps=6, prompts=3, written=9, seed=3)
    return folder


@pytest.fixture(scope="session")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same kind of run, in which every text wants to get out of the page."""
    folder = tmp_path_factory.mktemp("viewer") / "evil"
    make_run(folder, steps=4, prompts=2, written=6, seed=4)
    copy_changed(folder, folder, "**/*.jsonl*", lambda record: poison(record, "".join(EVIL)))
    return folder


@pytest.fixture(scope="session")
def page(made: Path, evil: Path) -> Path:
    """Both runs in one page."""
    file = made.parent / "view.html"
    write_view([made, evil], file)
    return file


@pytest.fixture(scope="session")
def browser() -> Iterator[Tab]:
    """One headless Chromium for all tests; where there is none they are skipped, or fail in CI."""
    if find_chromium() is None:
        no_browser()
    with chromium() as tab:
        yield tab
