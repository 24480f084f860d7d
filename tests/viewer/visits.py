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
    browser.problems.clear()
    browser.call("Page.navigate", url="about:blank")
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


def count(browser: Tab) -> int:
    """The number above the list, when the search has come to its end."""
    browser.wait("!document.querySelector('.count').innerText.includes('searching')")
    return int(texts(browser, ".count")[0].split()[0].replace(",", ""))
