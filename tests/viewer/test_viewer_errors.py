"""The page in a real browser of a file that has lost blocks: it says so where they would be shown."""

from pathlib import Path

import pytest
from visits import choose, click, show, texts

from benchmarks.chromium import Tab

LOST = "Error: this page has no block run0/{}"


def lose(browser: Tab, table: str) -> None:
    """Take the details of a table's rows out of the page."""
    browser.evaluate(f"document.querySelectorAll('[id^=\"run0/{table}/\"]').forEach(block => block.remove())")


@pytest.mark.parametrize(("place", "table"), [("bank", "entries"), ("episodes", "episodes"), ("extractor", "calls")])
def test_a_row_without_its_details_says_why(browser: Tab, page: Path, place: str, table: str) -> None:
    show(browser, page, f"#0/{place}", ".list .row")
    lose(browser, table)
    click(browser, ".list .row")
    browser.wait("document.querySelector('.detail .notice')")
    (said,) = texts(browser, ".detail .notice")
    assert said.startswith(LOST.format(f"{table}/"))


def test_an_entry_without_its_call_says_why(browser: Tab, page: Path) -> None:
    show(browser, page, "#0/bank", ".list .row")
    lose(browser, "calls")
    click(browser, ".list .row")
    browser.wait("document.querySelector('.detail .notice')")
    assert texts(browser, ".detail .section .notice") == [LOST.format("calls/0")]


def test_a_ranking_without_its_texts_says_why(browser: Tab, page: Path) -> None:
    show(browser, page, "#0/episodes", ".list .row")
    lose(browser, "entries")
    browser.evaluate("location.hash = '#0/overview'")
    browser.wait("document.querySelector('.ranking .content')?.innerText.length > 1")
    assert {*texts(browser, ".ranking .content")} == {LOST.format("entries/0")}


def test_a_search_that_cannot_read_everything_says_why(browser: Tab, page: Path) -> None:
    show(browser, page, "#0/bank", ".list .row")
    lose(browser, "entries")
    choose(browser, "Search entries", "wall", "input")
    browser.wait("document.querySelector('.master .notice')")
    assert texts(browser, ".master .notice") == [LOST.format("entries/0")]
    assert "searching" not in texts(browser, ".count")[0] and browser.problems == []
