"""Makes the pictures of docs/viewer.md from runs, or from two made ones, in light and dark colours.

python -m benchmarks.viewer_pictures [--runs RUN [RUN]] [--output docs/images] [--font FAMILY] [--width 1280]
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

from PIL import Image

from benchmarks.chromium import Tab, chromium
from benchmarks.made_run import make_run
from verl_comprl.viewer.view import write_view

WIDTH, HEIGHT, SCALE = 1280, 860, 1.5
RUNS = ("rooms-complementary", "rooms-seed-2")
COLOURS = 128


def take(tab: Tab, page: Path, hash: str, ready: str, file: Path, font: str) -> None:
    """Write a picture of the page at an address."""
    tab.call("Page.navigate", url="about:blank")
    tab.open(page, hash)
    tab.wait(f"document.querySelector({json.dumps(ready)})")
    tab.evaluate(
        f"document.documentElement.style.fontFamily = {json.dumps(font)}; dispatchEvent(new Event('theme'));"
        "new Promise(done => setTimeout(done, 1000))"
    )
    tab.picture(file)
    Image.open(file).convert("RGB").quantize(COLOURS).save(file, optimize=True)


def _made_runs(folder: str) -> list[Path]:
    os.chdir(folder)  # the page shows where its runs are
    runs = [Path("outputs") / name for name in RUNS]
    for seed, run in enumerate(runs):
        make_run(run, seed=seed)
    return runs


def main() -> None:
    """Make the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", nargs="+", type=Path, help="folders, shown as they are given (default: made ones)")
    parser.add_argument("--output", type=Path, default=Path("docs/images"))
    parser.add_argument("--font", default="", help="instead of the system's")
    parser.add_argument("--width", type=int, default=WIDTH, help="of the window in CSS pixels")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, chromium() as tab:
        output, page = options.output.resolve(), Path(folder) / "view.html"
        write_view(options.runs or _made_runs(folder), page)
        tab.size(options.width, HEIGHT, SCALE)
        for scheme, suffix in (("light", ""), ("dark", "_dark")):
            tab.scheme(scheme)
            take(tab, page, "#0", ".ranking svg", output / f"viewer{suffix}.png", options.font)
            entry = tab.evaluate("document.querySelector('.ranking a').hash")
            take(tab, page, entry, ".detail .reward", output / f"viewer_entry{suffix}.png", options.font)
            episode = tab.evaluate("document.querySelector(\".detail .many a[href*='/episodes/']\").hash")
            take(tab, page, episode, ".detail .turn", output / f"viewer_episode{suffix}.png", options.font)


if __name__ == "__main__":
    main()
