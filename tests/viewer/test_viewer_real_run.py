"""The page of a real run, ``examples/run``: what it shows is what was recorded."""

from collections import Counter, defaultdict
from math import hypot
from pathlib import Path
from statistics import fmean

import pytest
from run_files import Record, written_entries
from visits import choose, click, counts, hashes, read_rankings, show, texts

from benchmarks.chromium import Tab
from verl_comprl.algorithm.interval import pooled_interval
from verl_comprl.record import RunRecord
from verl_comprl.viewer.view import write_view

RUN = Path(__file__).parents[2] / "examples/run"
RANKINGS = {"Helped most": ".cards > :nth-child(3)", "Misled most": ".cards > :nth-child(4)"}


@pytest.fixture(scope="module")
def real_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("real") / "view.html"
    write_view([RUN], file)
    return file


@pytest.fixture(scope="module")
def episodes() -> dict[str, Record]:
    return {episode["id"]: episode for episode in RunRecord(RUN).episodes()}


@pytest.fixture(scope="module")
def entries(episodes: dict[str, Record]) -> list[Record]:
    """For each text that guided three episodes or more, an event that wrote it, with what its copies were worth.

    The event is that of the most used of the copies that are still in the bank, or of all.
    """
    free: dict[str, list[bool]] = defaultdict(list)
    guided: dict[str, list[Record]] = defaultdict(list)
    for episode in episodes.values():
        if episode["kind"] == "training" and episode["guided"]:
            guided[episode["guide"]["entry"]].append(episode)
        elif episode["kind"] == "training":
            free[episode["prompt"]].append(episode["outcome"]["success"])
    texts: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for event in written_entries(RUN).values():
        texts[event["title"], event["content"]].append(event)
    gone = {event["entry"] for event in RunRecord(RUN).events() if event["event"] in ("removed", "quarantined")}
    found = []
    for copies in texts.values():
        shown = min(copies, key=lambda event: (event["entry"] in gone, -len(guided[event["entry"]])))
        reads = [episode for event in copies for episode in guided[event["entry"]]]
        if len(reads) >= 3:
            own = guided[shown["entry"]]
            alone = worth(own, free) if own else None
            found.append(shown | worth(reads, free) | {"copies": len(copies), "alone": alone})
    order = [*written_entries(RUN)]
    return sorted(found, key=lambda event: order.index(event["entry"]))


def worth(guided: list[Record], free: dict[str, list[bool]]) -> Record:
    """Success with an entry, that of the free halves of the same prompts, and Newcombe's interval of the difference."""
    outcomes = [(episode["prompt"], episode["outcome"]["success"]) for episode in guided]
    others = [(prompt, success) for prompt in dict(outcomes) for success in free[prompt]]
    rate = fmean(success for _, success in outcomes)
    other = fmean(fmean(free[prompt]) for prompt, _ in outcomes)
    lowest, highest = pooled_interval(outcomes)
    free_lowest, free_highest = pooled_interval(others, other, Counter(prompt for prompt, _ in outcomes))
    return {
        "uses": len(outcomes),
        "rate": rate,
        "free": other,
        "low": rate - other - hypot(rate - lowest, free_highest - other),
        "high": rate - other + hypot(highest - rate, other - free_lowest),
    }


def ranked(entries: list[Record], title: str) -> list[Record]:
    """The six entries of a ranking."""
    if title == "Helped most":
        return sorted((item for item in entries if item["rate"] > item["free"]), key=lambda item: -item["low"])[:6]
    return sorted((item for item in entries if item["rate"] < item["free"]), key=lambda item: item["high"])[:6]


@pytest.mark.parametrize("title", RANKINGS)
def test_from_an_entry_of_a_ranking_to_the_rewards_of_the_call_that_wrote_it(
    browser: Tab, real_page: Path, entries: list[Record], episodes: dict[str, Record], title: str
) -> None:
    show(browser, real_page, "#0/overview", f"{RANKINGS[title]} .ranking")
    first, *_ = ranking = ranked(entries, title)
    ranking_shows(browser, title, ranking)
    click(browser, f"{RANKINGS[title]} .ranking a")
    entry_shows(browser, first)
    click(browser, ".detail .lineage a[href*='/episodes/']")
    episode_shows(browser, episodes[first["episode"]])
    click(browser, f".detail a[href$='/extractor/{first['call']}']")
    call = next(call for call in RunRecord(RUN).calls() if call["call"] == first["call"])
    call_shows(browser, call)
    rewards_show(browser, call)
    assert browser.problems == []


def ranking_shows(browser: Tab, title: str, ranking: list[Record]) -> None:
    card = RANKINGS[title]
    read_rankings(browser, card)
    assert texts(browser, f"{card} h2") == [title] and len(ranking) == 6
    assert hashes(browser, f"{card} .ranking a") == [f"#0/bank/{entry['entry']}" for entry in ranking]
    assert texts(browser, f"{card} .ranking a") == [entry["title"] for entry in ranking]
    assert texts(browser, f"{card} .content") == [entry["content"] for entry in ranking]
    origins = [f"{'updated' if entry['parents'] else 'added'} in step {entry['step']}" for entry in ranking]
    copies = [f" of {entry['copies']} copies" if entry["copies"] > 1 else "" for entry in ranking]
    uses = [f"{entry['uses']} uses{of}" for entry, of in zip(ranking, copies, strict=True)]
    assert texts(browser, f"{card} small") == [" · ".join(pair) for pair in zip(uses, origins, strict=True)]


def entry_shows(browser: Tab, entry: Record) -> None:
    browser.wait("document.querySelector('.detail .lineage')")
    assert texts(browser, ".detail .lesson") == [entry["content"]]
    worths = [entry["alone"], entry] if entry["copies"] > 1 else [entry]
    browser.wait(f"document.querySelectorAll('.detail .worth').length === {len(worths)}")
    shown = [number(text) for text in texts(browser, ".detail .worth > div > b")]
    expected = [share for worth in worths for share in (worth["rate"], worth["free"], worth["rate"] - worth["free"])]
    assert shown == pytest.approx([100 * share for share in expected], abs=0.51)
    links = [f"#0/episodes/{entry['episode']}", f"#0/extractor/{entry['call']}"]
    assert hashes(browser, ".detail .lineage > li > a")[:2] == links


def episode_shows(browser: Tab, episode: Record) -> None:
    browser.wait("document.querySelector('.detail .turns')")
    assert texts(browser, ".detail .goal") == [episode["goal"]]
    assert texts(browser, ".turn .response") == [turn["response"] for turn in episode["turns"]]
    observations = [*(turn["observation"] for turn in episode["turns"]), episode["final_observation"]]
    assert texts(browser, ".turn .observation") == observations
    assert texts(browser, ".detail h2 .outcome") == ["●" if episode["outcome"]["success"] else "○"]


def call_shows(browser: Tab, call: Record) -> None:
    browser.wait("document.querySelector('.detail .operation')")
    assert texts(browser, ".operation .badge") == [operation["operation"] for operation in call["operations"]]
    assert texts(browser, ".operation div.text") == [operation["content"] for operation in call["operations"]]
    raw = browser.evaluate("[...document.querySelectorAll('.detail pre.raw')].map(item => item.textContent)")
    assert raw == [call["answer"], *(message["content"] for message in call["messages"])]


def rewards_show(browser: Tab, call: Record) -> None:
    """Of the episodes that used it, no more than the list shows at first."""
    browser.wait(f"document.querySelectorAll('.detail .reward').length === {len(call['uses'])}")
    rewards = [number(text) for text in texts(browser, ".detail .reward")]
    shown = dict(zip(hashes(browser, ".detail .reward + a"), rewards, strict=True))
    assert shown == {f"#0/episodes/{use['episode']}": use["reward"] for use in call["uses"]}
    cells = [number(text) for text in texts(browser, ".trainings tbody td")]
    columns = ("update", "step", "reward", "weight", "advantage")
    trainings = [training[column] for training in call["trainings"] for column in columns]
    assert cells == pytest.approx(trainings, abs=0.0051) and trainings


def test_a_ranking_goes_on_in_the_bank_where_each_text_stands_once(
    browser: Tab, real_page: Path, entries: list[Record]
) -> None:
    first, *_ = ranked(entries, "Helped most")
    show(browser, real_page, "#0/overview", ".ranking")
    click(browser, f"{RANKINGS['Helped most']} header a")
    written = written_entries(RUN).values()
    counts(browser, f"{len({(event['title'], event['content']) for event in written})} texts")
    browser.wait(f"document.querySelector('.list .row').hash.includes('{first['entry']}')")
    uses = f"{first['uses']}\n{first['copies']} copies"
    assert texts(browser, ".list .row:first-child .column")[2] == uses
    choose(browser, "Copies", "")
    counts(browser, f"{len(written):,} entries")


def number(text: str) -> float:
    return float(text.replace("−", "-").rstrip(" %"))


def test_its_lists_hold_everything_that_was_recorded(
    browser: Tab, real_page: Path, episodes: dict[str, Record]
) -> None:
    record = RunRecord(RUN)
    entries, calls = written_entries(RUN), [*record.calls()]
    for place, noun, rows in (
        ("bank", "entries", entries),
        ("episodes", "episodes", episodes),
        ("extractor", "calls", calls),
    ):
        show(browser, real_page, f"#0/{place}", ".list .row")
        counts(browser, f"{len(rows):,} {noun}")
    show(browser, real_page, "#0/episodes", ".list .row")
    choose(browser, "Kind", "evaluation")
    evaluations = sum(episode["kind"] == "evaluation" for episode in episodes.values())
    counts(browser, f"{evaluations} episodes")
