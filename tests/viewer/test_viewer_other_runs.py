"""The page in a real browser of runs that lack something: experience, turns, free halves, a second evaluation."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
from run_files import Record, copy_changed, written_entries
from visits import counts, search, show, texts

from benchmarks.chromium import Tab
from verl_comprl.record import RunRecord
from verl_comprl.record.lines import encode
from verl_comprl.record.step_files import StepFiles
from verl_comprl.viewer.view import write_view


def view(folder: Path, kept: int | None = None) -> Path:
    write_view([folder], folder / "view.html", kept)
    return folder / "view.html"


@pytest.fixture(scope="module")
def baseline(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without experience: free episodes, no entries and no calls of an extractor."""
    folder = tmp_path_factory.mktemp("other") / "baseline"
    copy_changed(made, folder, "episodes/*", lambda item: None if item["guided"] else item)

    def free(line: Record) -> Record:
        absent = ("comprl/guided", "comprl/bank", "comprl/extractor")
        return line | {"data": {name: value for name, value in line["data"].items() if not name.startswith(absent)}}

    copy_changed(made, folder, "metrics.jsonl", free)
    copy_changed(
        made,
        folder,
        "evaluations.jsonl",
        lambda line: {k: v for k, v in line.items() if not re.search(r"success_with(_|$)", k)},
    )
    return view(folder)


@pytest.mark.parametrize(
    ("place", "expected"),
    [("bank", "This run has no entries."), ("extractor", "This run has no calls of an extractor."), ("episodes", None)],
)
def test_a_run_without_experience_says_what_it_lacks(
    browser: Tab, baseline: Path, place: str, expected: str | None
) -> None:
    show(browser, baseline, f"#0/{place}", ".list")
    assert texts(browser, ".list .empty") == ([expected] if expected else [])
    # Nothing but elements: a condition that is 0 would be shown as a text.
    loose = "[...document.querySelector('.master').childNodes].filter(node => node.nodeType === Node.TEXT_NODE)"
    assert browser.evaluate(f"{loose}.map(node => node.data)") == []
    noun = {"bank": "entries", "extractor": "calls", "episodes": "episodes"}[place]
    search(browser, noun, "zzz")
    counts(browser, f"0 {noun}")
    assert texts(browser, ".list .empty") == [expected or "Nothing matches."]
    assert browser.problems == []


def test_a_run_without_experience_has_an_overview(browser: Tab, baseline: Path) -> None:
    show(browser, baseline, "#0/overview", ".overview .u-wrap")
    assert texts(browser, ".figure .label") == ["evaluation, free", "training, free", "entries", "episodes"]
    assert browser.problems == []


def test_charts_of_two_runs_stand_next_to_each_other(browser: Tab, made: Path, baseline: Path, tmp_path: Path) -> None:
    """Also those that one of them lacks."""
    folders = [shutil.copytree(run, tmp_path / name) for run, name in ((baseline.parent, "one"), (made, "two"))]
    shutil.copy(made / "config.yaml", folders[0])  # as a run of its own has one
    write_view(folders, tmp_path / "view.html")
    show(browser, tmp_path / "view.html", "#0/overview|1/overview", ".pane:nth-child(2) .u-wrap")
    places = (
        "[...document.querySelectorAll('.pane:nth-child({}) .chart')]"
        ".map(item => [item.querySelector('h3').innerText, item.offsetHeight, item.getBoundingClientRect().top])"
    )
    left, right = (browser.evaluate(places.format(side)) for side in (1, 2))
    assert left == right and len(left) > 5
    lacking = texts(browser, ".pane:nth-child(1) .chart .legend")
    assert lacking[2] == "not in this run" and "not in this run" not in texts(browser, ".pane:nth-child(2) .legend")
    cards = "[...document.querySelectorAll('.pane:nth-child(2) .card')].map(item => !!item.querySelector('.ranking'))"
    shown = browser.evaluate(cards)
    assert shown == sorted(shown), "a ranking stands before a chart"
    assert browser.problems == []


def test_a_page_without_all_turns_says_of_how_many_episodes_it_knows_them(
    browser: Tab, made: Path, tmp_path: Path
) -> None:
    shutil.copytree(made, tmp_path / "run")
    page = view(tmp_path / "run", 50)
    show(browser, page, "#0/overview", ".figure")
    assert "turns of 48 of 144" in texts(browser, ".figure")[-1]
    show(browser, page, "#0/episodes", ".list .row")
    assert texts(browser, ".count") == ["144 episodes · turns of 48 of 144"]
    show(browser, view(tmp_path / "run"), "#0/episodes", ".list .row")
    assert texts(browser, ".count") == ["144 episodes"]


def test_figures_say_of_which_steps_they_are(browser: Tab, made: Path, tmp_path: Path) -> None:
    show(browser, view(shutil.copytree(made, tmp_path / "run")), "#0/overview", ".figure")
    assert [text.split("\n")[-1].split(" · ")[0] for text in texts(browser, ".figure")[:4]] == 4 * ["step 6"]
    folder = tmp_path / "long"

    def stretched(line: Record) -> list[Record]:
        return [line | {"step": 10 * line["step"] + number} for number in range(-9, 1)]

    folder.mkdir()
    metrics = [copy for line in RunRecord(made).metrics() for copy in stretched(dict(line))]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    copy_changed(made, folder, "evaluations.jsonl", lambda line: line | {"step": 0} if line["step"] == 1 else None)
    show(browser, view(folder), "#0/overview", ".figure")
    when = [text.split("\n")[-1].split(" · ")[0] for text in texts(browser, ".figure")[:4]]
    assert when == 2 * ["before training"] + 2 * ["last 2 steps"]


def test_success_has_one_scale_and_a_single_evaluation_its_interval(browser: Tab, tmp_path: Path) -> None:
    """Of a run that has only been evaluated before its first step."""
    folder = tmp_path / "run"
    folder.mkdir()
    rates = {"": 0.25, "_low": 0.12, "_high": 0.48}
    line = {"step": 0} | {f"comprl/eval/success_without{end}": rate for end, rate in rates.items()}
    (folder / "evaluations.jsonl").write_text(json.dumps(line) + "\n")
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 0, "data": {}}) + "\n")
    show(browser, view(folder), "#0/overview", ".overview .u-wrap canvas")
    assert {"0 %", "100 %"} <= {*drawn(browser)}
    painted = browser.evaluate(
        "(([canvas, over]) => [0.05, 0.16, 0.37, 0.45, 0.53, 0.7].map(rate => canvas.getContext('2d').getImageData("
        "(over.getBoundingClientRect().left - canvas.getBoundingClientRect().left) * devicePixelRatio,"
        "(over.getBoundingClientRect().top - canvas.getBoundingClientRect().top + (1 - rate) * over.clientHeight)"
        " * devicePixelRatio, 1, 1).data[3] > 0))"
        "(['.chart canvas', '.chart .u-over'].map(name => document.querySelector(name)))"
    )
    assert painted == [False, True, True, True, False, False]


def test_a_step_that_lacks_a_value_shows_none(browser: Tab, made: Path, tmp_path: Path) -> None:
    """Nothing is guided in the first step, as while a run warms up."""

    def unguided(line: Record) -> Record:
        kept = {name: value for name, value in line["data"].items() if not name.startswith("comprl/guided/")}
        return line | {"data": kept} if line["step"] == 1 else line

    folder = tmp_path / "run"
    copy_changed(made, folder, "experience.jsonl", dict)
    copy_changed(made, folder, "metrics.jsonl", unguided)
    show(browser, view(folder), "#0/overview", ".overview .u-over")
    values = texts(browser, ".chart .legend > span")[:2]
    assert all(re.match(r"(with experience|without) \d+ %", value) for value in values)
    left, top, width = browser.evaluate(
        "(({left, top, width}) => [left, top, width])(document.querySelector('.chart .u-over').getBoundingClientRect())"
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=left + width / 6, y=top + 30)
    browser.wait("document.querySelector('.chart .step').innerText === 'step 1'")
    with_experience, without = texts(browser, ".chart .legend > span")[:2]
    assert with_experience == "with experience \N{EN DASH}" and re.match(r"without \d+ %", without)


def test_entries_that_a_run_began_with_are_told_from_those_that_it_wrote(
    browser: Tab, made: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(made, tmp_path / "run")
    given = {"event": "given", "step": 0, "entry": "g", "title": "before", "content": "known", "tasks": ["room"]}
    file = folder / "experience.jsonl"
    file.write_text(json.dumps(given) + "\n" + file.read_text())
    page = view(folder)
    show(browser, page, "#0/overview", ".figure")
    assert f"of {len(written_entries(made))} written and 1 given" in texts(browser, ".figure")[-2]
    show(browser, page, "#0/bank?at=0", ".list .row")
    counts(browser, "1 entries")
    show(browser, page, "#0/bank/g", ".detail .lesson")
    browser.wait("document.querySelector('.detail .lesson').innerText === 'known'")


def test_the_timeline_is_as_high_as_the_bank_was(browser: Tab, made: Path, tmp_path: Path) -> None:
    show(browser, view(shutil.copytree(made, tmp_path / "run")), "#0/bank", ".timeline .u-over")
    written = len(written_entries(made))
    largest = max(line["data"]["comprl/bank/size"] for line in RunRecord(made).metrics())
    assert f"ever written {written}" in texts(browser, ".timeline .legend")[0]
    assert largest <= max(map(int, drawn(browser))) * 1.2 < written


def drawn(browser: Tab) -> list[str]:
    """Texts of the axes of all charts, which are drawn again."""
    return browser.evaluate(
        "new Promise(done => { const found = [], place = CanvasRenderingContext2D.prototype, fill = place.fillText;"
        "place.fillText = function (text, ...rest) { found.push(text); fill.call(this, text, ...rest); };"
        "dispatchEvent(new Event('theme')); setTimeout(() => { place.fillText = fill; done(found); }); })"
    )


def test_an_entry_does_not_contradict_itself(browser: Tab, made: Path, tmp_path: Path) -> None:
    """The free episodes of some prompts are not on record, as after ``comprl.record.keep_steps``."""
    episodes = [*RunRecord(made).episodes()]
    helped = {item["prompt"] for item in episodes if not item["guided"] and item["outcome"]["success"]}
    guided: dict[str, list[Record]] = {}
    for item in episodes:
        if item["guided"]:
            guided.setdefault(item["guide"]["entry"], []).append(item)

    def failures(uses: list[Record]) -> list[Record]:
        """Those with prompts none of which the entry succeeded with."""
        return [item for item in uses if item["prompt"] not in succeeded(uses)]

    def succeeded(uses: list[Record]) -> set[str]:
        return {item["prompt"] for item in uses if item["outcome"]["success"]}

    entry, uses = next(
        (entry, uses)
        for entry, uses in guided.items()
        if succeeded(uses) and failures(uses) and all(item["prompt"] in helped for item in failures(uses))
    )
    lost, kept = succeeded(uses), failures(uses)
    folder = tmp_path / "run"
    copy_changed(made, folder, "*.jsonl", dict)
    copy_changed(
        made, folder, "episodes/*", lambda item: None if item["prompt"] in lost and not item["guided"] else item
    )
    copy_changed(made, folder, "extractor_calls/*", dict)
    show(browser, view(folder), f"#0/bank/{entry}", ".detail .worth")
    own, free, gain = texts(browser, ".worth > div")
    noun = "episode" if len(kept) == 1 else "episodes"
    assert own.split("\n") == ["with it", "0 %", f"{len(kept)} training {noun}"]
    points = int(gain.split("\n")[1].replace("−", "-"))
    assert points == -int(free.split("\n")[1].split()[0]) < 0
    rate = round(100 * sum(item["outcome"]["success"] for item in uses) / len(uses))
    assert texts(browser, ".worth > p") == [
        f"{len(kept)} of {len(uses)} uses have a free half on record; of all {len(uses)} uses {rate} % succeeded."
    ]
    assert f"success 0 % with it, {-points} % in the free half" in browser.evaluate(
        "document.querySelector('.worth svg').ariaLabel"
    )


def test_episodes_of_evaluations_have_no_halves(browser: Tab, made: Path, tmp_path: Path) -> None:
    guided = [item for item in RunRecord(made).episodes() if item["guided"]]
    entry = guided[0]["guide"]["entry"]
    ids = [item["id"] for item in guided if item["guide"]["entry"] == entry]
    folder = tmp_path / "run"
    copy_changed(made, folder, "*.jsonl", lambda item: None if item.get("episode") == ids[0] else item)
    copy_changed(
        made, folder, "episodes/*", lambda i: i | {"kind": "evaluation"} if i["prompt"] == guided[0]["prompt"] else i
    )
    show(browser, view(folder), f"#0/bank/{entry}", ".detail .many")
    evaluated = sum(id.startswith(guided[0]["prompt"]) for id in ids)
    assert (
        texts(browser, ".detail .section summary")[1]
        == f"Episodes it guided\n{len(ids)}, of them {evaluated} in evaluations"
    )
    lines = texts(browser, ".detail .many li")
    assert sum("evaluation · without it" in line for line in lines) == evaluated > 0
    assert all(("free half" in line) != ("evaluation" in line) for line in lines if line.startswith(("●", "○")))


def test_a_ranking_is_empty_if_no_entry_misled_and_does_not_ask_for_more_uses(
    browser: Tab, made: Path, tmp_path: Path
) -> None:
    """All guided episodes succeed, and no other."""
    folder = tmp_path / "run"
    copy_changed(
        made, folder, "*.jsonl", lambda item: item | ({"success": True} if item.get("event") == "read" else {})
    )
    copy_changed(made, folder, "episodes/*", lambda item: item | {"outcome": {"success": item["guided"], "score": 0.0}})
    show(browser, view(folder), "#0/overview", ".ranking")
    helped, misled = (texts(browser, f".cards > :nth-child({place}) > :last-child") for place in (3, 4))
    assert helped != misled == ["No entry."]


def test_the_list_of_an_entry_holds_the_episodes_that_it_guided(browser: Tab, made: Path, tmp_path: Path) -> None:
    """Another episode has read an answer from it, which is counted apart."""
    guides = Counter(item["guide"]["entry"] for item in RunRecord(made).episodes() if item["guided"])
    entry, count = guides.most_common(1)[0]
    question = {"query": "How?", "answer": "So.", "status": "answered", "entry": entry, "entry_text": "", "call": None}
    other = next(item["id"] for item in RunRecord(made).episodes() if not item["guided"])

    def ask(episode: Record) -> Record:
        return episode | {"turns": [turn | {"questions": [question]} for turn in episode["turns"]]}

    folder = tmp_path / "run"
    copy_changed(made, folder, "*.jsonl", dict)
    copy_changed(made, folder, "episodes/*", lambda item: ask(item) if item["id"] == other else item)
    page = view(folder)
    show(browser, page, f"#0/bank/{entry}", ".detail .many")
    titles = [title.split("\n") for title in texts(browser, ".detail .section summary")]
    assert ["Episodes it guided", str(count)] in titles and ["Episodes that read an answer from it", "1"] in titles
    show(browser, page, f"#0/episodes?entry={entry}", ".list .row")
    counts(browser, f"{count} episodes")


def test_a_question_carries_loss_though_no_room_was_left_for_its_answer(
    browser: Tab, made: Path, tmp_path: Path
) -> None:
    """The output ends with it, in the second turn; of another episode it is not among the spans that carry loss."""
    asked, masked = [
        item for item in RunRecord(made).episodes() if item["tool_calls"] and item["turns"][1]["questions"]
    ][:2]

    def cut(item: Record) -> Record:
        if item["id"] not in (asked["id"], masked["id"]):
            return item
        first, second, *_ = item["turns"]
        spans = item["loss_spans"][:2]
        unfinished = {key: second[key] for key in ("observation", "questions")}
        item |= {"turns": [first], "unfinished": unfinished, "output": item["output"][: spans[1][1]]}
        return item | {"loss_spans": spans[: 2 if item["id"] == asked["id"] else 1]}

    folder = tmp_path / "run"
    copy_changed(made, folder, "*.jsonl", dict)
    copy_changed(made, folder, "episodes/*", cut)
    page = view(folder)
    for episode, marked in ((asked, [asked["turns"][1]["questions"][0]["query"]]), (masked, [])):
        show(browser, page, f"#0/episodes/{episode['id']}", ".detail .question")
        assert texts(browser, ".question .loss") == marked
        assert [text.split("\n")[0] for text in texts(browser, ".turn .gutter")][:2] == ["1", "…"]


def test_a_call_that_was_trained_on_still_says_that_it_could_not_be_parsed(
    browser: Tab, made: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    copy_changed(made, folder, "*.jsonl", dict)
    copy_changed(made, folder, "extractor_calls/*", dict)
    call = next(call for call in RunRecord(made).calls() if not call["format_ok"])
    training = {"event": "trained", "call": call["call"], "step": 6, "update": 1, "reward": -1.0, "weight": 1.0}
    StepFiles(folder / "extractor_calls").append(6, [encode(training | {"advantage": -0.5}) + b"\n"])
    show(browser, view(folder), f"#0/extractor/{call['call']}", ".detail .trainings")
    assert texts(browser, ".detail header p")[0].endswith(" · reward −1.00: could not be parsed")
    assert "It could not be parsed: reward −1.0." in texts(browser, ".detail .section")[0]
