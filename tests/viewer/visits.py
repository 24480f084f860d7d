"""Visits to the page in a browser: open it at an address, read, click, choose and type as a person would."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import pytest

from benchmarks.chromium import Tab


def no_browser(environment: Mapping[str, str] = os.environ) -> NoReturn:
    """Skip what needs a Chromium, or fail in continuous integration.

    The setup goes on without a Chromium, since nothing but these tests needs one, and a skipped test is green: no CI
    would ever notice that the page is not looked at any more. GitHub, as most services, sets ``CI``.
    """
    what = "no Chromium here; on Debian: apt-get install -y chromium"
    if environment.get("CI", "") not in ("", "false"):
        pytest.fail(f"{what} (CI is set, so a skipped test would be a hole)", pytrace=False)
    pytest.skip(what)


def show(browser: Tab, page: Path, hash: str, ready: str) -> None:
    """Load the page at an address and wait for an element of it."""
    browser.call("Page.navigate", url="about:blank")
    browser.problems.clear()  # after it: leaving the page before may have been one
    browser.size(1400, 900)
    browser.open(page, hash)
    browser.wait(f"location.href.endsWith({json.dumps(hash)}) && document.querySelector({json.dumps(ready)})")


def texts(browser: Tab, selector: str) -> list[str]:
    return browser.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map(item => item.innerText)")


def hashes(browser: Tab, selector: str) -> list[str]:
    """Where links lead."""
    return browser.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map(item => item.hash)")


def click(browser: Tab, selector: str) -> None:
    browser.wait(f"document.querySelector({json.dumps(selector)})")
    browser.evaluate(f"document.querySelector({json.dumps(selector)}).click()")


def choose(browser: Tab, label: str, value: str, event: str = "change") -> None:
    """Give the control with this label a value, as a person would."""
    box = f"document.querySelector('[aria-label={json.dumps(label)}]')"
    browser.evaluate(f"{box}.value = {json.dumps(value)}; {box}.dispatchEvent(new Event('{event}', {{bubbles: true}}))")


def search(browser: Tab, noun: str, words: str) -> None:
    """Type into a search and wait until it has begun and come to its end, as is said above the list."""
    browser.evaluate(
        "((place) => { window.said = []; new MutationObserver(() => said.push(place.innerText)).observe(place, "
        "{subtree: true, childList: true, characterData: true}); })(document.querySelector('.count'))"
    )
    choose(browser, f"Search {noun}", words, "input")
    browser.wait("said.some(text => text.includes('searching')) && !said.at(-1).includes('searching')")


def counts(browser: Tab, expected: str) -> None:
    """Wait until this is what stands above the list."""
    browser.wait(f"document.querySelector('.count').innerText === {json.dumps(expected)}")


def read_rankings(browser: Tab, card: str = ".card") -> None:
    """Wait until the texts of the ranked entries have been read."""
    browser.wait(
        f"((texts) => texts.length && texts.every(item => item.innerText !== '…'))"
        f"([...document.querySelectorAll({json.dumps(f'{card} .content')})])"
    )


def draw(browser: Tab) -> None:
    """Let the browser draw twice: what follows from a change, such as sizes that are observed, has happened then."""
    browser.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
