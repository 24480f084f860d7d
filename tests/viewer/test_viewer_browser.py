"""The page in a real browser: no errors, search, links, filters, two runs, and text that stays text."""

import json
import re
from pathlib import Path

import pytest
from run_files import Record, written_entries
from visits import choose, click, counts, draw, read_rankings, show, texts

from benchmarks.chromium import Tab
from verl_comprl.record import RunRecord


@pytest.fixture(scope="module")
def episodes(made: Path) -> list[Record]:
    return [*RunRecord(made).episodes()]


@pytest.fixture(scope="module")
def guided(episodes: list[Record]) -> Record:
    """An episode that read an entry and asked a question."""
    return next(episode for episode in episodes if episode["guided"] and episode["tool_calls"])


@pytest.mark.parametrize("run", [0, 1])
@pytest.mark.parametrize("place", ["overview", "bank", "episodes", "extractor"])
def test_every_page_is_shown_without_an_error_or_a_request(browser: Tab, page: Path, run: int, place: str) -> None:
    browser.requests.clear()
    show(browser, page, f"#{run}/{place}", ".overview .ranking" if place == "overview" else ".list .row")
    if place == "overview":
        read_rankings(browser)
    else:
        click(browser, ".list .row")
        browser.wait("document.querySelector('.detail header h2')")
        browser.wait("document.querySelector('.detail > .facts')")  # what is decompressed for it has come
        browser.evaluate("document.querySelectorAll('.detail details').forEach(item => { item.open = true; })")
    for scheme in ("dark", "light"):
        browser.scheme(scheme)
    assert browser.evaluate("window.hacked") is None
    assert browser.problems == [] and {*browser.requests} <= {page.resolve().as_uri(), "about:blank"}


def test_texts_of_a_run_are_shown_letter_by_letter(browser: Tab, page: Path, evil_texts: tuple[str, ...]) -> None:
    show(browser, page, "#1/bank", ".list .row")
    click(browser, ".list .row")
    browser.wait("document.querySelector('.detail .lesson')?.textContent.length > 5")
    shown = browser.evaluate("document.querySelector('.detail .lesson').textContent")
    assert shown.endswith("".join(evil_texts))
    assert browser.evaluate("document.querySelectorAll('#app script, #app img').length") == 0
    assert browser.problems == []


def test_a_script_in_the_page_cannot_run_even_if_it_got_in(browser: Tab, page: Path) -> None:
    show(browser, page, "#0/overview", ".overview")
    # Its own handler would have been called before the one that is added to it.
    browser.evaluate(
        "new Promise(done => { document.body.insertAdjacentHTML('beforeend', \"<img src=x onerror='window.hacked = 9'>"
        "\"); document.body.lastChild.addEventListener('error', done); }).then(() => null)"
    )
    assert browser.evaluate("window.hacked") is None and "Content Security Policy" in " ".join(browser.problems)


def test_leaving_a_page_for_another_is_no_error(browser: Tab, page: Path) -> None:
    show(browser, page, "#0/overview", ".overview .u-wrap")
    for place, ready in (("bank", ".list .row"), ("overview", ".overview .u-wrap"), ("extractor", ".list .row")):
        browser.evaluate(f"location.hash = '#0/{place}'")
        browser.wait(f"document.querySelector({json.dumps(ready)})")
        draw(browser)  # sizes are observed later
    assert [problem[:60] for problem in browser.problems] == []


def test_links_lead_from_an_episode_to_its_entry_and_back(browser: Tab, page: Path, guided: Record) -> None:
    show(browser, page, f"#0/episodes/{guided['id']}", ".detail .guide a")
    entry = guided["guide"]["entry"]
    click(browser, ".detail .guide a")
    browser.wait(f"location.hash === '#0/bank/{entry}'")
    title = guided["guide"]["entry_text"].partition("\n")[0]
    browser.wait(f"document.querySelector('.detail h2')?.innerText === {json.dumps(title)}")
    browser.wait("document.querySelector('.detail .many')")
    browser.evaluate(
        "document.querySelectorAll('.detail button').forEach(b => b.innerText.startsWith('Show all') && b.click())"
    )
    click(browser, f".detail .many a[href$='/episodes/{guided['id']}']")
    browser.wait("document.querySelector('.detail .turns')")
    assert browser.evaluate("location.hash") == f"#0/episodes/{guided['id']}"
    browser.evaluate("history.back()")
    browser.wait(f"location.hash === '#0/bank/{entry}'")


def test_an_entry_shows_its_origin_and_the_rewards_of_its_call(browser: Tab, page: Path, guided: Record) -> None:
    show(browser, page, f"#0/bank/{guided['guide']['entry']}", ".detail .lineage a")
    call = guided["guide"]["call"]
    assert browser.evaluate("[...document.querySelectorAll('.detail .lineage a')].map(a => a.hash)").count(
        f"#0/extractor/{call}"
    )
    browser.wait("document.querySelectorAll('.detail .reward').length > 0")
    hint = browser.evaluate("document.querySelector('.worth div:nth-child(2)').title")
    assert "their mean" in hint, "why success of the free half need not be that of the episodes next to it"
    click(browser, f".detail .lineage a[href$='{call}']")
    browser.wait("document.querySelector('.detail .operation')")


def test_an_episode_shows_experience_questions_and_what_carries_loss(browser: Tab, page: Path, guided: Record) -> None:
    show(browser, page, f"#0/episodes/{guided['id']}", ".detail .turns")
    assert guided["guide"]["text"].partition("\n")[2] in texts(browser, ".guide")[0]
    asked = [question for turn in guided["turns"] for question in turn["questions"]]
    assert len(asked) == len(texts(browser, ".question")) and asked[0]["answer"] in texts(browser, ".question")[0]
    facts = [text.split("\n") for text in texts(browser, ".detail .facts div")]
    assert ["weights", str(guided["weight_versions"][0])] in facts and len({*guided["weight_versions"]}) == 1
    assert texts(browser, ".response .loss") == [turn["response"] for turn in guided["turns"]]
    assert texts(browser, ".question .loss") == [question["query"] for question in asked]
    browser.evaluate("document.querySelectorAll('.detail details').forEach(item => { item.open = true; })")
    marked = browser.evaluate("[...document.querySelectorAll('.raw .loss')].map(item => item.textContent)")
    assert marked == [guided["output"][start:end] for start, end in guided["loss_spans"]]
    assert browser.evaluate("document.querySelector('.raw .inserted').textContent") == guided["guide"]["text"]
    padding, bar = browser.evaluate(
        "(({paddingLeft, boxShadow}) => [parseFloat(paddingLeft), parseFloat(boxShadow.match(/([\\d.]+)px/)[1])])"
        "(getComputedStyle(document.querySelector('.raw .inserted')))"
    )
    assert padding > bar, "the bar stands on the first letter"


def test_spans_count_characters_as_python_does(browser: Tab, page: Path) -> None:
    show(browser, page, "#0/overview", ".overview")
    text, spans = "a🗝️b🚪🚪c", [[1, 4], [5, 7]]
    parts = browser.evaluate(
        f"import('viewer/episode').then(m => m.units({json.dumps(text)}, {spans})"
        f".map(([start, end]) => {json.dumps(text)}.slice(start, end)))"
    )
    assert parts == [text[start:end] for start, end in spans]


@pytest.mark.parametrize("words", ["corners MIDDLE", "wall", "going whole", "no such text anywhere"])
def test_search_finds_what_the_entries_say(browser: Tab, page: Path, made: Path, words: str) -> None:
    entries = written_entries(made)
    holding = [
        event for event in entries.values()
        if all(word in f"{event['title']} {event['content']}".lower() for word in words.lower().split())
    ]  # fmt: skip
    show(browser, page, "#0/bank", ".list .row")
    counts(browser, f"{len(entries)} entries")
    choose(browser, "Search entries", words, "input")
    counts(browser, f"{len(holding)} entries")
    assert browser.evaluate("location.hash").startswith("#0/bank?q=")  # so that it can be passed on as a link


def test_search_of_episodes_reads_their_turns(browser: Tab, page: Path, episodes: list[Record]) -> None:
    holding = [episode for episode in episodes if "does not open. What now?" in json.dumps(episode)]
    show(browser, page, "#0/episodes?q=does%20not%20open.%20what%20now%3F", ".list")
    assert 0 < len(holding) < len(episodes)
    counts(browser, f"{len(holding)} episodes")


def test_filters_and_sorting(browser: Tab, page: Path, episodes: list[Record]) -> None:
    show(browser, page, "#0/episodes", ".list .row")
    choose(browser, "Half", "guided")
    choose(browser, "Outcome", "success")
    wanted = [item for item in episodes if item["guided"] and item["outcome"]["success"]]
    counts(browser, f"{len(wanted)} episodes")
    choose(browser, "Sort", "advantage up")
    browser.wait("location.hash.includes('advantage+up')")
    first = min(wanted, key=lambda item: item["advantage"])
    browser.wait(f"document.querySelector('.list .row').hash.includes('{first['id']}')")


def test_episodes_that_asked_are_found_also_if_the_answer_rests_on_their_own_entry(
    browser: Tab, page: Path, episodes: list[Record]
) -> None:
    questions = [[asked for turn in item["turns"] for asked in turn["questions"]] for item in episodes]
    asked = [item for item, found in zip(episodes, questions, strict=True) if found]
    assert {question["entry"] for found in questions for question in found} == {
        item["guide"]["entry"] for item in asked
    }
    show(browser, page, "#0/episodes", ".list .row")
    choose(browser, "Questions", "1")
    counts(browser, f"{len(asked)} episodes")


def test_the_list_of_entries_shows_the_ends_by_which_gains_are_sorted(browser: Tab, page: Path) -> None:
    for way, end in (("down", 0), ("up", 1)):
        show(browser, page, f"#0/bank?sort=gain%20{way}", ".list .row .bounded small")
        shown = [text.replace("−", "-").split(" to ")[end] for text in texts(browser, ".list .row .bounded small")]
        ends = [int(text) for text in shown]
        assert len(ends) > 3 and ends == sorted(ends, reverse=way == "down")


def test_rankings_tell_entries_of_one_title_apart(browser: Tab, page: Path, made: Path) -> None:
    entries = written_entries(made)
    show(browser, page, "#0/overview", ".ranking li")
    read_rankings(browser)
    shown = browser.evaluate(
        "[...document.querySelectorAll('.ranking li')].map("
        "item => [item.querySelector('a').hash.split('/').pop(), item.querySelector('.content').textContent])"
    )
    assert shown and all(text == entries[id]["content"] for id, text in shown)
    heights = browser.evaluate("[...document.querySelectorAll('.ranking .content')].map(item => item.clientHeight)")
    assert max(heights) < 30, "one line each"


def test_a_narrow_list_cuts_the_tasks_and_not_how_often_an_entry_was_used(browser: Tab, page: Path) -> None:
    show(browser, page, "#0/bank", ".list .row small")
    used = [text for text in texts(browser, ".list .row .main small") if "%" in text]
    form = re.compile(r"\d+ % of \d+ · (added|updated|made by a merge)( in step \d+)?( · [\w ]+)? · \S+(, \S+)*")
    assert used and all(map(form.fullmatch, used)), used[:3]


def test_a_step_of_the_timeline_shows_the_bank_as_it_was(browser: Tab, page: Path, made: Path) -> None:
    show(browser, page, "#0/bank?at=4", ".list .row")
    size = next(line["data"]["comprl/bank/size"] for line in RunRecord(made).metrics() if line["step"] == 4)
    counts(browser, f"{size:.0f} entries")
    click(browser, ".chip")
    browser.wait("!location.hash.includes('at=')")


def test_a_click_on_the_timeline_keeps_search_and_open_entry(browser: Tab, page: Path) -> None:
    show(browser, page, "#0/bank", ".list .row")
    choose(browser, "Search entries", "lamp", "input")
    browser.wait("location.hash === '#0/bank?q=lamp'")
    click(browser, ".list .row")
    browser.wait("/^#0.bank.[^?]+.q=lamp$/.test(location.hash)")
    opened = browser.evaluate("location.hash")
    browser.wait("document.querySelector('.detail')")
    right = "document.querySelector('{}').getBoundingClientRect().right"
    browser.wait(f"{right.format('.timeline .u-over')} <= {right.format('.timeline')}")  # as narrow as its list
    place = browser.evaluate(
        "(({left, top, width}) => [left + width / 2, top + 30])"
        "(document.querySelector('.timeline .u-over').getBoundingClientRect())"
    )
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        event = {"type": kind, "x": place[0], "y": place[1]}
        browser.call("Input.dispatchMouseEvent", **event, button="left", clickCount=int(kind != "mouseMoved"))
    browser.wait(f"location.hash.startsWith({json.dumps(opened + '&at=')})")


def test_escape_closes_what_is_open_but_not_from_within_the_search(browser: Tab, page: Path) -> None:
    show(browser, page, "#0/bank", ".list .row")
    click(browser, ".list .row")
    browser.wait("document.querySelector('.detail h2')")
    press = "document.querySelector('{}').dispatchEvent(new KeyboardEvent('keydown', {{key: 'Escape', bubbles: true}}))"
    browser.evaluate(press.format("input[type=search]"))
    draw(browser)
    assert browser.evaluate("document.querySelectorAll('.detail').length") == 1
    browser.evaluate(press.format("body"))
    browser.wait("!document.querySelector('.detail')")


def test_a_list_that_changes_does_not_take_its_reader_back(browser: Tab, page: Path, episodes: list[Record]) -> None:
    show(browser, page, f"#0/episodes/{episodes[0]['id']}", ".detail .turns")
    browser.evaluate("document.querySelector('.list').scrollTop = 4000")
    choose(browser, "Sort", "advantage up")
    browser.wait("location.hash.includes('advantage+up')")
    draw(browser)
    assert browser.evaluate("document.querySelector('.list').scrollTop") == 4000


def test_two_runs_are_shown_side_by_side(browser: Tab, page: Path) -> None:
    show(browser, page, "#0/bank", ".list .row")
    browser.evaluate("[...document.querySelectorAll('.tools button')].find(b => b.innerText === 'Compare').click()")
    browser.wait("document.querySelectorAll('.pane .list').length === 2")
    assert browser.evaluate("[...document.querySelectorAll('select.run')].map(item => item.value)") == ["0", "1"]
    browser.evaluate("document.querySelectorAll('.pane')[1].querySelector('.list .row').click()")
    browser.wait("document.querySelectorAll('.pane')[1].querySelector('.detail')")
    assert browser.evaluate("document.querySelectorAll('.pane')[0].querySelector('.detail')") is None
    click(browser, "[aria-label='Close this side']")
    browser.wait("document.querySelectorAll('.pane').length === 1")


def test_two_sides_in_a_narrow_window_show_what_is_filtered_and_how_to_undo_it(browser: Tab, page: Path) -> None:
    show(browser, page, "#0/bank?kind=updated&sort=uses+down|1/bank", ".pane:nth-child(2) .list .row")
    browser.size(390, 800)
    shown = "[...document.querySelectorAll('.bar select')].filter(item => item.checkVisibility())"
    browser.wait(f"{shown}.length === 2")
    assert browser.evaluate(f"{shown}.map(item => item.ariaLabel)") == ["Origin", "Sort"]
    assert browser.evaluate(f"{shown}.every(item => item.getBoundingClientRect().right <= 390)")
    choose(browser, "Origin", "")
    choose(browser, "Sort", "gain down")
    browser.wait(f"{shown}.length === 0")


def test_a_second_side_keeps_the_colours(browser: Tab, page: Path) -> None:
    show(browser, page, "#0/bank", ".list .row")
    for theme in ("light", "dark"):
        click(browser, ".theme")
        browser.wait(f"document.documentElement.dataset.theme === '{theme}'")
    browser.evaluate("[...document.querySelectorAll('.tools button')].find(b => b.innerText === 'Compare').click()")
    browser.wait("document.querySelectorAll('.pane .list').length === 2")
    draw(browser)
    assert browser.evaluate("document.documentElement.dataset.theme") == "dark"
    assert browser.evaluate("document.querySelector('.theme').title") == "Colours: dark"


def test_a_run_is_shown_though_another_was_chosen_that_is_still_being_read(browser: Tab, page: Path) -> None:
    show(browser, page, "#0/bank", ".list .row")
    browser.evaluate(
        "import('viewer/data').then(({Run}) => { const read = Run.read; Run.read = (number) => new Promise("
        "done => { window.release = () => read(number).then(run => { done(run); }); }); })"
    )
    choose(browser, "Run", "1")
    browser.wait("document.querySelector('.loading')")
    choose(browser, "Run", "0")
    browser.wait("document.querySelector('.list .row')")
    browser.evaluate("release()")
    draw(browser)
    assert texts(browser, ".loading") == [] and texts(browser, ".list .row")
    choose(browser, "Run", "1")
    browser.wait("location.hash === '#1/bank' && document.querySelector('.list .row')")


def test_an_address_that_was_passed_on_is_read(browser: Tab, page: Path) -> None:
    show(browser, page, "#0/bank%7C1/extractor", ".pane:nth-child(2) .list .row")
    assert browser.evaluate("[...document.querySelectorAll('select.run')].map(item => item.value)") == ["0", "1"]
    for broken, ready in (("#%", ".pane .tabs"), ("#0/bank/%E0%A4%A", ".detail .empty")):
        show(browser, page, broken, ready)
        assert browser.problems == []
    assert texts(browser, ".detail .empty") == ["%E0%A4%A is not among the entries of this run."]
    choose(browser, "Search entries", "a|1/bank", "input")  # no second side
    browser.wait("location.hash.includes('?q=')")
    show(browser, page, browser.evaluate("location.hash"), ".pane .list")
    assert browser.evaluate("document.querySelector('[type=search]').value") == "a|1/bank"
    assert browser.evaluate("document.querySelectorAll('.pane').length") == 1


def test_a_long_list_holds_few_rows(browser: Tab, page: Path, episodes: list[Record]) -> None:
    show(browser, page, "#0/episodes", ".list .row")
    counts(browser, f"{len(episodes)} episodes")
    assert browser.evaluate("document.querySelectorAll('.list .row').length") < 40
    browser.evaluate("document.querySelector('.list').scrollTop = 1e9")
    browser.wait(f"document.querySelector('.slot[aria-posinset=\"{len(episodes)}\"]')")


@pytest.mark.parametrize("place", ["overview", "bank", "episodes", "extractor"])
def test_nothing_is_wider_than_a_narrow_window(browser: Tab, page: Path, place: str) -> None:
    show(browser, page, f"#0/{place}", ".overview .ranking" if place == "overview" else ".list .row")
    browser.size(400, 800)
    if place != "overview":
        click(browser, ".list .row")
        browser.wait("document.querySelector('.detail > .facts')")
    box = "document.querySelector('.overview, .detail')"
    browser.wait(f"{box}.clientWidth <= 400")
    assert browser.evaluate(f"{box}.scrollWidth - {box}.clientWidth") == 0
    assert browser.evaluate("document.documentElement.scrollWidth") == 400
