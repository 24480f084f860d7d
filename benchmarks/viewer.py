"""Measures ``comprl view`` on a large run: writing the page, and how soon a browser shows it.

A made run of 5,000 episodes and 20,000 entries is collected into a page, which a headless Chromium opens from disk,
several times. *first_paint* is the browser's own number, from navigation on; *first_page* is when curves and rankings
stand in the document; *thread* is the processor time of the page's main thread until then, which does not depend on
what else the machine does. *list*: until another page shows its list; *search*: one search in all its texts. The target
is a first paint within 2 s; if it is missed, the exit code is 1.

    python -m benchmarks.viewer [--episodes 5000] [--entries 20000] [--repeats 5] [--json]
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.chromium import Tab, chromium
from benchmarks.made_run import K, make_run
from verl_comprl.viewer.view import write_view

PROMPTS = 4
TARGET_SECONDS = 2.0
PAINTS = "performance.getEntriesByType('paint').find(entry => entry.name === 'first-contentful-paint')?.startTime"
SEARCH = """(async () => {
  const box = document.querySelector('input[type=search]');
  const started = performance.now();
  box.value = 'stariden velnuvel'; box.dispatchEvent(new Event('input', {bubbles: true}));
  await new Promise(done => setTimeout(done, 250));
  const count = document.querySelector('.count');
  while (count.textContent.includes('searching')) await new Promise(done => setTimeout(done, 20));
  return performance.now() - started;
})()"""


def write_large(folder: Path, episodes: int, entries: int) -> tuple[Path, float]:
    """Make a run of about this size and its page; returns the page and the seconds that writing it took."""
    run, file = folder / "run", folder / "view.html"
    steps = -(-episodes // (PROMPTS * K))
    # Of 25 calls one cannot be parsed, and writes none.
    make_run(run, steps, PROMPTS, -(-entries * 26 // (steps * 25)), turns=10, words=40)
    started = time.perf_counter()
    write_view([run], file)
    return file, time.perf_counter() - started


def measure(tab: Tab, file: Path) -> dict[str, float]:
    """Return the seconds of one visit."""
    tab.call("Page.navigate", url="about:blank")  # so that the page is loaded, not only scrolled
    tab.open(file)
    tab.wait("location.href.endsWith('.html') && document.querySelectorAll('.ranking li, .chart canvas').length > 4")
    shown = tab.evaluate("performance.now()")
    tab.wait(PAINTS)
    found = {"first_paint": tab.evaluate(PAINTS), "first_page": shown, "thread": 1000 * tab.thread_seconds()}
    for page, noun in (("bank", "entries"), ("episodes", "episodes")):
        started = tab.evaluate("performance.now()")
        tab.evaluate(f"location.hash = '#0/{page}'")
        tab.wait(f"document.querySelectorAll('.list[aria-label={noun}] .row').length > 5")
        found[f"{page}_list"] = tab.evaluate("performance.now()") - started
        found[f"{page}_search"] = tab.evaluate(SEARCH)
    return {name: value / 1000 for name, value in found.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=5000)
    parser.add_argument("--entries", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file, seconds = write_large(Path(folder), options.episodes, options.entries)
        result: dict[str, float] = {"write": seconds, "megabytes": file.stat().st_size / 2**20}
        with chromium() as tab:
            visits = [measure(tab, file) for _ in range(options.repeats)]
    result |= {name: statistics.median(visit[name] for visit in visits) for name in visits[0]}
    within = result["first_paint"] <= TARGET_SECONDS
    if options.json:
        print(json.dumps(result))
    else:
        print(f"{options.episodes:,} episodes, {options.entries:,} entries; seconds, median of {options.repeats}")
        for name, value in result.items():
            print(f"{name:16} {value:8.2f}")
        print("first paint", "within" if within else "NOT within", f"{TARGET_SECONDS} s")
    if not within:
        sys.exit(1)


if __name__ == "__main__":
    main()
