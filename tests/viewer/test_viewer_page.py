"""The file: complete, self-contained, and closed to what runs contain."""

import re
from collections.abc import Iterator
from errno import EIO
from html.parser import HTMLParser
from pathlib import Path

import pytest
from run_files import Record

from verl_comprl.record import RunRecord
from verl_comprl.viewer.page import write_page
from verl_comprl.viewer.view import run_names, write_view


class Scripts(HTMLParser):
    """Collects the script elements and the addresses that elements point to."""

    def __init__(self) -> None:
        super().__init__()
        self.types: list[str] = []
        self.addresses: list[str] = []
        self.title = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "script":
            self.types.append(given.get("type") or "")
        self.addresses += [str(value) for name, value in attrs if name in ("src", "href", "action")]
        self._tag = tag

    def handle_data(self, data: str) -> None:
        if getattr(self, "_tag", "") == "title" and not self.title:
            self.title = data


def parse(file: Path) -> Scripts:
    parser = Scripts()
    parser.feed(file.read_text(encoding="utf-8"))
    return parser


def test_texts_of_a_run_do_not_reach_the_file_as_they_are(
    evil: Path, evil_texts: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "view.html"
    write_view([evil], file)
    text, scripts = file.read_text(encoding="utf-8"), parse(file)
    assert not any(part in text for part in evil_texts)
    assert scripts.types[:2] == ["importmap", "module"] and {*scripts.types[2:]} == {"text/plain"}
    assert scripts.addresses == []  # nothing is loaded from anywhere


def test_a_title_is_escaped_and_a_policy_forbids_requests(evil_texts: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "view.html"
    write_page(file, f"{evil_texts[0]} & more", [])
    scripts, text = parse(file), file.read_text(encoding="utf-8")
    assert scripts.title == f"{evil_texts[0]} & more" and scripts.types == ["importmap", "module"]
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy and "default-src 'none'" in policy[1] and "unsafe" not in policy[1]
    nonces = set(re.findall(r'nonce="([^"]+)"', text))
    assert len(nonces) == 1 and f"'nonce-{nonces.pop()}'" in policy[1] and "%" not in policy[1]


def test_a_page_that_cannot_be_completed_leaves_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "view.html"
    file.write_text("old")

    def blocks():
        yield from ()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_page(file, "title", blocks())
    assert file.read_text() == "old" and [*tmp_path.iterdir()] == [file]


def test_a_run_that_cannot_be_read_leaves_nothing_and_is_not_blamed_on_the_page(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: RunRecord) -> Iterator[Record]:
        yield from ()
        raise OSError(EIO, "Input/output error")  # of a file that was opened: it has no name

    monkeypatch.setattr(RunRecord, "calls", broken)
    with pytest.raises(OSError, match="Input/output error") as raised:
        write_view([made], tmp_path / "new" / "view.html")
    assert raised.value.filename is None and [*tmp_path.iterdir()] == []


def test_runs_with_equal_names_are_told_apart() -> None:
    assert run_names([Path("/x/a/run"), Path("/x/b/run")]) == ["a/run", "b/run"]
    assert run_names([Path("/x/a/one"), Path("/x/b/two")]) == ["one", "two"]
    assert run_names([Path("/x/a")]) == ["a"]
