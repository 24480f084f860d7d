"""Published numbers of the miniature are those of the rows beside them, computed here a second time."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev

import pytest

from recipes.miniature.report import tables_page
from recipes.miniature.rows import Row, stored_rows

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(path.parent for path in (ROOT / "docs/results").glob("*/rows.jsonl"))
T = {2: 12.706, 3: 4.303, 5: 2.776}
"""0.975 quantiles of Student's t by number of worlds."""
LATE = "late_actor"
"""Complementary with ``trainer.critic_warmup``."""
ARMS = {
    "complementary": "complementary",
    "experience only": "experience_only",
    "static online": "static_online",
    "baseline": "baseline",
    "late actor": LATE,
    "complementary, the actor from step 15 on": LATE,
}
Successes = Callable[[str, str, int], dict[int, float]]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_tables_are_made_of_the_rows_that_are_published_with_them(folder: Path) -> None:
    assert (folder / "tables.md").read_text() == tables_page(stored_rows(folder / "rows.jsonl"))


def successes(folder: str, batch: str) -> Successes:
    """Return a function of arm, "with" or "without", and step that returns success by world."""
    rows: list[Row] = stored_rows(ROOT / "docs/results" / folder / "rows.jsonl")

    def of(arm: str, mode: str, step: int) -> dict[int, float]:
        found = [row for row in rows if (row["arm"], row["batch"]) == (arm, batch)]
        measured = {row["seed"]: row["evaluations"].get(str(step), {}) for row in found}
        return {seed: value[mode] for seed, value in measured.items() if mode in value}

    return of


def spread(values: list[float]) -> str:
    """Write a mean and its standard deviation as the page does."""
    return short(mean(values)) + (f" ± {short(stdev(values))}" if len(values) > 1 else "")


def interval(differences: list[float]) -> str:
    """Write a mean difference and half of its 95 % interval as the page does."""
    count, middle = len(differences), mean(differences)
    half = f" ± {short(T[count] * stdev(differences) / count**0.5)}" if count > 1 else ""
    sign = "+" if middle >= 0 else "−"
    return f"{sign}{short(abs(middle))}{half} ({sum(value > 0 for value in differences)} of {count})"


def short(value: float) -> str:
    return f"{value:.2f}".removeprefix("0")


def differences(one: dict[int, float], other: dict[int, float]) -> list[float]:
    return [one[world] - other[world] for world in sorted(one.keys() & other.keys())]


def table(page: str, header: str) -> list[list[str]]:
    """Return the cells of the table whose header begins so, without bold type."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(header)) + 2
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().replace("**", "") for cell in line.strip("|").split(" | ")])
    return rows


def test_success_on_the_page_is_that_of_the_rows() -> None:
    of = successes("miniature", "3")
    rows = table("docs/results.md", "| arm | evaluated | step 0 |")
    assert len(rows) == 5
    for arm, mode, *cells in rows:
        name = ARMS[arm.partition(":")[0]]
        at = {step: list(of(name, mode, step).values()) for step in (0, 30, 60, 120)}
        worlds = of(name, mode, 60)
        few = f" ({len(at[120])})" if at[120] else ""
        last = spread(at[120]) + few if at[120] else "-"
        expected = [spread(at[0]), spread(at[30]), spread(at[60]), " ".join(short(worlds[w]) for w in sorted(worlds))]
        assert cells == [*expected, last], arm


def pair(what: str, of: Successes, step: int) -> tuple[dict[int, float], dict[int, float]]:
    """Return success by world of the two arms of a row such as "complementary (with) − baseline"."""
    if what == "static online: with − without":
        return of("static_online", "with", step), of("static_online", "without", step)
    named = re.fullmatch(r"(.+) \((with|without)\) − (.+?)(?: \((with)\))?", what)
    assert named, what
    one, mode, other, second = named.groups()
    return of(ARMS[one], mode, step), of(ARMS[other], second or "without", step)


def test_differences_on_the_page_are_those_of_the_rows() -> None:
    of = successes("miniature", "3")
    rows = table("docs/results.md", "| difference, paired over worlds")
    assert len(rows) == 7
    for what, *cells in rows:
        found = [differences(*pair(what, of, step)) for step in (30, 60, 120)]
        assert cells == [interval(each) if each else "-" for each in found], what


def check_tables(title: str, of: Successes, steps: tuple[int, int, int], lengths: tuple[int, int]) -> None:
    """Compare the table of success of a section of the page, and that of differences, which lacks the first step."""
    rows, compared = (table("docs/results.md", f"| {title}{rest} |") for rest in (" | evaluated", ", difference"))
    assert (len(rows), len(compared)) == lengths
    for arm, mode, *cells in rows:
        at = [of(ARMS[arm], mode, step) for step in steps]
        worlds = " ".join(short(at[-1][world]) for world in sorted(at[-1]))
        assert cells == [*(spread(list(found.values())) for found in at), worlds], arm
    for what, *cells in compared:
        assert cells == [interval(differences(*pair(what, of, step))) for step in steps[1:]], what


def test_asynchronous_runs_on_the_page_are_those_of_the_rows_beside_those_of_the_same_worlds() -> None:
    folders = {"separate_async": "separate_async", "sync": "miniature"}

    def of(trainer: str, arm: str, mode: str, step: int) -> dict[int, float]:
        found = successes(folders[trainer], "3")(arm, mode, step)
        return {world: found[world] for world in (17, 18, 19)}

    rows = stored_rows(ROOT / "docs/results/separate_async/rows.jsonl")
    for arm, mode, trainer, *cells in (table_rows := table("docs/results.md", "| arm | evaluated | trainer |")):
        at = [of(trainer, arm, mode, step) for step in (0, 30, 60)]
        lag = [row["staleness"] for row in rows if row["arm"] == arm]
        assert len(lag) == 3 and max(each["largest"] for each in lag) == 1
        staleness = f"{short(mean(each['mean'] for each in lag))} (1)" if trainer == "separate_async" else "0"
        worlds = " ".join(short(at[-1][world]) for world in (17, 18, 19))
        assert cells == [*(spread(list(found.values())) for found in at), worlds, staleness], (arm, mode, trainer)
    compared = table("docs/results.md", "| paired over three worlds")
    assert (len(table_rows), len(compared)) == (6, 3)
    with_experience = {step: [of(trainer, "complementary", "with", step) for trainer in folders] for step in (30, 60)}
    without = {step: [of(trainer, "baseline", "without", step) for trainer in folders] for step in (30, 60)}
    for number, (_, *cells) in enumerate(compared[:2]):
        assert cells == [interval(differences(with_experience[at][number], without[at][number])) for at in (30, 60)]
    assert compared[2][1:] == [interval(differences(*with_experience[at])) for at in (30, 60)]


def test_one_family_on_the_page_is_that_of_the_rows() -> None:
    check_tables("one family", successes("one_family", "1x12"), (0, 20, 40), (6, 6))


def test_two_families_on_the_page_are_those_of_the_rows() -> None:
    def of(arm: str, mode: str, step: int) -> dict[int, float]:
        return late("complementary", mode, step) if arm == LATE else usual(arm, mode, step)

    usual, late = successes("two_families", "2"), successes("two_families_late", "2")
    check_tables("two families", of, (0, 30, 60), (5, 9))
    page = (ROOT / "docs/extractor.md").read_text(encoding="utf-8")
    before, after = (spread(list(of(arm, "with", 60).values())) for arm in ("complementary", LATE))
    assert f"from {before} to {after} ([results]" in page


def test_without_experience_the_page_has_each_worlds_numbers() -> None:
    rows = table("docs/results.md", "| arm | updates | world | evaluated |")
    assert len(rows) == 18
    for arm, updates, world, mode, *cells in rows:
        of = successes("without_experience", "3" if updates == "1" else f"3u{updates}")
        name = arm.partition(":")[0].replace("-", "_")
        assert cells == [short(of(name, mode, step)[int(world)]) for step in range(0, 181, 30)], (arm, world, mode)


def test_what_was_learned_on_the_page_is_that_of_the_rows() -> None:
    rows = table("docs/results.md", "| | 15 | 16 | 17 | 18 | 19 |")
    names = ("kind_family", "right", "read_right", "extractor_reward", "unreadable")
    stored = stored_rows(ROOT / "docs/results/miniature/rows.jsonl")
    journals = {row["seed"]: row["journal"] for row in stored if row["arm"] == "complementary"}

    def signed(value: float) -> str:
        return ("−" if value < -0.005 else "") + short(abs(value))

    for (_, *cells), name in zip(rows, names, strict=True):
        found = [[journals[world][window][name] for window in ("15", "60")] for world in range(15, 20)]
        assert cells == [f"{signed(start)} → {signed(end)}" for start, end in found], name


def test_without_experience_the_page_and_the_readme_have_the_rows_numbers() -> None:
    of = successes("without_experience", "3u4")
    others, found = ("baseline", "self_imitation"), list[list[str]]()
    rows = table("docs/results.md", "| four updates, without experience |")
    for other, (what, *cells) in zip(others, rows, strict=True):
        assert what == f"self-distillation − {other.replace('_', '-')}"
        pairs = [(of("self_distillation", "without", s), of(other, "without", s)) for s in (60, 90, 120, 150, 180)]
        found.append([interval(differences(*pair)) for pair in pairs])
        assert cells == found[-1]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    last = [100 * mean(of(arm, "without", 180).values()) for arm in ("self_distillation", *others)]
    assert f"{last[0]:.0f} % after 180 steps, GRPO {last[1]:.0f} %" in readme
    assert f"imitates its own successes without experience, {last[2]:.0f} %" in readme
    half = found[0][-1].split()
    assert f"{half[0].replace('.', '')} ± {half[2].removeprefix('.')} points" in readme


def test_the_readmes_table_has_the_rows_numbers() -> None:
    of = successes("miniature", "3")
    expected = [
        ("complementary", "with"),
        ("experience_only", "with"),
        ("static_online", "with"),
        ("baseline", "without"),
    ]
    rows = table("README.md", "| after 60 steps, known rules")
    assert [cell for _, cell in rows] == [f"{100 * mean(of(arm, mode, 60).values()):.0f} %" for arm, mode in expected]


def test_minihack_on_the_page_is_that_of_its_rows() -> None:
    runs = [json.loads(line) for line in (ROOT / "docs/results/minihack.jsonl").read_text().splitlines()]
    page = table("docs/results.md", "| arm | experience | step 0 | step 15 |")
    assert len(page) == 3
    for arm, side, *cells in page:
        found = sorted((run for run in runs if run["arm"] == arm), key=lambda run: run["seed"])
        steps = list(zip(*([line[side] for line in run["evaluations"]] for run in found), strict=True))
        spreads = [f"{mean(values):.2f} ± {stdev(values):.2f}" for values in steps]
        assert cells == [*spreads, ", ".join(f"{value:.2f}" for value in steps[-1])], arm
    times = table("docs/results.md", "| arm | wall clock, s |")
    for arm, cell in times:
        seconds = [run["seconds"] for run in runs if run["arm"] == arm]
        assert cell.startswith(f"{mean(seconds):.0f} ({min(seconds):.0f} to {max(seconds):.0f}"), arm
    assert len(times) == 2
