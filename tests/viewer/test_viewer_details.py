"""The page in a real browser: lineage of entries, calls of the extractor, filters, keys, and the scale of two runs."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from run_files import Record, written_entries
from visits import choose, click, counts, search, show, texts

from benchmarks.chromium import Tab
from benchmarks.made_run import make_run
from verl_comprl.record import RunRecord
from verl_comprl.viewer.view import write_view


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six steps, in which entries are also merged."""
    folder = tmp_path_factory.mktemp("details") / "made run"
    make_run(folder, steps=6, prompts=3, written=12, seed=3)
    return folder


@pytest.fixture(scope="module")
def page(made: Path, evil: Path) -> Path:
    """That run, and one of four steps."""
    file = made.parent / "view.html"
    write_view([made, evil], file)
    return file


@pytest.fixture(scope="module")
def entries(made: Path) -> list[Record]:
    """The events that wrote the entries."""
    return [*written_entries(made).values()]


@pytest.fixture(scope="module")
def calls(made: Path) -> list[Record]:
    return list(RunRecord(made).calls())


def lineage(browser: Tab) -> dict[str, list[str]]:
    """Labels of an entry's lineage, each with the addresses of the nearest relatives next to it."""
    browser.wait("document.querySelector('.detail .lineage')")
    return browser.evaluate(
        "Object.fromEntries([...document.querySelectorAll('.detail .lineage > li')].map(item => [item.firstChild"
        ".textContent, [...item.querySelectorAll(':scope > a, :scope > .kin > li > .line > a')].map(a => a.hash)]))"
    )


def test_an_entry_says_where_it_comes_from_and_what_became_of_it(
    browser: Tab, page: Path, entries: list[Record]
) -> None:
    def became(entry: Record) -> list[str]:
        return [f"#0/bank/{other['entry']}" for other in entries if entry["entry"] in other["parents"]]

    updated = next(entry for entry in entries if entry["event"] == "written" and entry["parents"] and became(entry))
    merged = next(entry for entry in entries if entry["event"] == "merged" and not became(entry))
    for entry, label in ((updated, "replaces"), (merged, "merged from")):
        show(browser, page, f"#0/bank/{entry['entry']}", ".detail .lineage")
        expected = {label: [f"#0/bank/{parent}" for parent in entry["parents"]]}
        expected |= {"written by": [f"#0/extractor/{entry['call']}"]}
        if entry["event"] == "written":
            expected |= {"episode": [f"#0/episodes/{entry['episode']}"], "became": became(entry)}
        assert lineage(browser) == expected


def test_an_answer_stands_next_to_its_question(browser: Tab, page: Path, calls: list[Record]) -> None:
    call = next(call for call in calls if call["kind"] == "answer")
    show(browser, page, f"#0/extractor/{call['call']}", ".detail .question")
    assert texts(browser, ".question .text") == [call["query"], call["text"]]


def test_a_call_that_could_not_be_parsed_says_why_and_what_it_earned(
    browser: Tab, page: Path, calls: list[Record]
) -> None:
    call = next(call for call in calls if not call["format_ok"])
    show(browser, page, f"#0/extractor/{call['call']}", ".detail .notice")
    (error,) = call["errors"]
    assert texts(browser, ".detail .notice p") == [f"{error['kind']}: {error['message']}"]
    browser.wait("document.querySelector('.detail').innerText.includes('It could not be parsed: reward −1.0.')")


def test_the_entries_can_be_filtered(browser: Tab, page: Path, made: Path, entries: list[Record]) -> None:
    kinds = {item["entry"]: "merged" if item["event"] == "merged" else "updated" for item in entries if item["parents"]}
    fates = {
        parent: "merged" if item["event"] == "merged" else "replaced" for item in entries for parent in item["parents"]
    }
    uses = Counter(item["guide"]["entry"] for item in RunRecord(made).episodes() if item["guided"])
    task = entries[0]["tasks"][0]
    chosen: dict[tuple[str, str], Callable[[Record], bool]] = {
        ("Origin", "added"): lambda item: item["entry"] not in kinds,
        ("Origin", "updated"): lambda item: kinds.get(item["entry"]) == "updated",
        ("Fate", "present"): lambda item: item["entry"] not in fates,
        ("Fate", "merged"): lambda item: fates.get(item["entry"]) == "merged",
        ("Use", "0"): lambda item: uses[item["entry"]] == 0,
        ("Use", "5"): lambda item: uses[item["entry"]] >= 5,
        ("Task", task): lambda item: task in item["tasks"],
    }
    filters_keep(browser, page, "bank", "entries", entries, chosen)


def test_an_entry_that_a_merge_made_and_another_replaced_says_which_is_which(
    browser: Tab, page: Path, entries: list[Record]
) -> None:
    parents = {parent: item for item in entries if item["event"] == "merged" for parent in item["parents"]}
    entry, away = next((item, parents[item["entry"]]) for item in entries if item["entry"] in parents)
    show(browser, page, f"#0/bank/{entry['entry']}", ".list .row.chosen")
    gone = f"added in step {entry['step']} · merged into another"
    assert gone in texts(browser, ".list .row.chosen small")[0]
    assert texts(browser, ".detail header p")[0].startswith(f"{gone} in step {away['step']} · ")
    show(browser, page, f"#0/bank/{away['entry']}", ".list .row.chosen")
    made = f"made by a merge in step {away['step']} · "
    assert made in texts(browser, ".list .row.chosen small")[0]
    assert texts(browser, ".detail header p")[0].startswith(f"{made}still in the bank · ")


def test_what_was_trained_on_says_what_its_numbers_mean(browser: Tab, page: Path, calls: list[Record]) -> None:
    call = next(call for call in calls if call["uses"] and call["trainings"])
    show(browser, page, f"#0/extractor/{call['call']}", ".detail .trainings")
    assert "+1: an episode that used it succeeded, −1: it failed" in texts(browser, ".detail .section")[0]
    hints = browser.evaluate("[...document.querySelectorAll('.trainings th')].map(item => item.title)")
    assert len(hints) == 5 and all(hints) and "Eq. 7" in hints[3]


def test_the_calls_can_be_filtered(browser: Tab, page: Path, calls: list[Record]) -> None:
    def operations(call: Record) -> list[str]:
        return [operation["operation"] for operation in call["operations"]]

    chosen: dict[tuple[str, str], Callable[[Record], bool]] = {
        ("Purpose", "answer"): lambda call: call["kind"] == "answer",
        ("Parsed", "yes"): lambda call: call["format_ok"],
        ("Parsed", "no"): lambda call: not call["format_ok"],
        ("Operation", "update"): lambda call: "update" in operations(call),
    }
    filters_keep(browser, page, "extractor", "calls", calls, chosen)


def filters_keep(
    browser: Tab,
    page: Path,
    place: str,
    noun: str,
    items: list[Record],
    chosen: dict[tuple[str, str], Callable[[Record], bool]],
) -> None:
    """One filter after the other leaves as many rows as there are items that it should keep."""
    show(browser, page, f"#0/{place}", ".list .row")
    for (label, value), keep in chosen.items():
        kept = sum(map(keep, items))
        assert 0 < kept < len(items)
        choose(browser, label, value)
        counts(browser, f"{kept} {noun}")
        choose(browser, label, "")
        counts(browser, f"{len(items)} {noun}")


def test_search_of_calls_reads_prompts_and_answers(browser: Tab, page: Path, calls: list[Record]) -> None:
    for words in (["episode", "succeeded."], ["unclosed"]):  # of a prompt, and of an answer that could not be parsed
        said = [json.dumps([call["messages"], call["answer"]]).lower() for call in calls]
        holding = [text for text in said if all(word in text for word in words)]
        assert 0 < len(holding) < len(calls)
        show(browser, page, f"#0/extractor?q={'%20'.join(words)}", ".list .row")
        counts(browser, f"{len(holding)} calls")


def test_a_list_without_end_says_how_many_it_leaves_out(browser: Tab, page: Path) -> None:
    show(browser, page, "#0/overview", ".overview")
    browser.evaluate(
        "Promise.all(['preact', 'viewer/parts'].map(name => import(name))).then(([{render}, {Many, html}]) => render("
        "html`<${Many} items=${[...Array(2500).keys()]} render=${item => item} />`, document.querySelector('#app')))"
    )
    click(browser, "#app button")
    browser.wait("document.querySelectorAll('#app li').length === 2000")
    assert texts(browser, "#app > p") == ["and 500 more"]


def press_escape(browser: Tab) -> None:
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="Escape")


def test_escape_closes_what_is_open_of_two_sides_the_right_one_first(browser: Tab, page: Path) -> None:
    show(browser, page, "#0/bank|1/extractor", ".pane:nth-child(2) .list .row")
    for side in (2, 1):
        click(browser, f".pane:nth-child({side}) .list .row")
        browser.wait(f"document.querySelector('.pane:nth-child({side}) .detail .facts')")
    search(browser, "entries", "door")  # the left side is drawn again, last of all
    left, _ = browser.evaluate("location.hash").split("|")
    press_escape(browser)
    browser.wait("document.querySelectorAll('.detail').length === 1")
    assert browser.evaluate("location.hash") == f"{left}|1/extractor"
    press_escape(browser)
    browser.wait("document.querySelectorAll('.detail').length === 0")
    assert browser.evaluate("location.hash") == "#0/bank?q=door|1/extractor"


@pytest.mark.parametrize("shorter", [1, 2])
def test_two_runs_of_different_length_have_one_scale_of_steps(
    browser: Tab, made: Path, evil: Path, tmp_path: Path, shorter: int
) -> None:
    """Half of six steps is three on either side, though one of the runs has only four."""
    page = tmp_path / "view.html"
    write_view([evil, made] if shorter == 1 else [made, evil], page)
    show(browser, page, "#0/bank|1/bank", ".pane:nth-child(2) .timeline .u-over")
    for side in (1, 2):
        timeline = f".pane:nth-child({side}) .timeline"
        browser.wait(f"document.querySelector('{timeline} .u-over')")
        x, y = browser.evaluate(
            "(({left, top, width}) => [left + width / 2, top + 30])"
            f"(document.querySelector('{timeline} .u-over').getBoundingClientRect())"
        )
        browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        browser.wait(f"document.querySelector('{timeline} .step').innerText === 'step 3'")
