"""Bank commands that change nothing, on a folder that no run has open."""

import asyncio
import json
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_embedder import FakeEmbedder

from verl_comprl.cli import main
from verl_comprl.cli.bank import read
from verl_comprl.experience import BankConfig, Experience, ExperienceBank
from verl_comprl.experience.store.embedded import EmbeddedStore
from verl_comprl.experience.transfer.snapshot import read_snapshot

Run = Callable[..., Any]


def contents(folder: Path) -> list[Experience]:
    async def load() -> list[Experience]:
        bank = await ExperienceBank.open(BankConfig(path=str(folder)), None, read_only=True)
        entries = bank.entries()
        await bank.close()
        return entries

    return asyncio.run(load())


def test_stats(comprl_bank: Run, folder: Path) -> None:
    (stats,) = comprl_bank("stats", "--path", folder, "--json").objects
    assert stats["size"] == 6 and stats["quarantined"] == 1 and stats["never_used"] == 3
    assert stats["tasks"] == {"minihack": 4, "alfworld": 3} and stats["environments"] == {"room": 6}
    assert stats["uses"] == 16 and stats["success_rate"] == 6 / 16 and stats["replacing_others"] == 1
    assert (stats["first_step"], stats["last_step"]) == (0, 6)
    assert stats["embedding"] == {"model": "fake", "dimension": 64}
    shown = comprl_bank("stats", "--path", folder).out
    assert "success rate      0.375" in shown and "minihack 4 · alfworld 3" in shown and "model fake" in shown


def test_list_filters_sorts_and_limits(comprl_bank: Run, folder: Path) -> None:
    def steps(*arguments: str) -> list[int]:
        return [entry["created_step"] for entry in comprl_bank("list", "--path", folder, "--json", *arguments).objects]

    assert steps() == [0, 2, 3, 4, 5, 6]  # oldest first; 1 was replaced
    assert steps("--reverse") == [6, 5, 4, 3, 2, 0]
    assert steps("--where", "uses>=1", "success_rate<0.2") == [0, 3]
    assert steps("--where", "uses>=1", "--where", "tasks=minihack") == [0, 2]
    assert steps("--sort", "success_rate") == [3, 0, 2, 4, 5, 6]
    assert steps("--sort", "success_rate", "--reverse") == [2, 0, 3, 4, 5, 6]
    assert steps("--limit", "2") == [0, 2] and steps("--limit", "0") == steps()


def test_list_json_has_every_field(comprl_bank: Run, folder: Path) -> None:
    done = comprl_bank("list", "--path", folder, "--json", "--limit", "4")
    assert [(fields["uses"], fields["success_rate"]) for fields in done.objects] == [
        (10, 0.1), (5, 1.0), (1, 0.0), (0, None)
    ]  # fmt: skip
    assert done.objects[0]["posterior_success"] == 2 / 12
    plain = [{key: fields[key] for key in Experience.model_fields} for fields in done.objects]
    assert [Experience.model_validate(fields) for fields in plain] == contents(folder)[:4]
    assert done.err == "4 of 6 entries shown; --limit 0 shows all\n"


def test_list_prints_a_table(comprl_bank: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = comprl_bank("list", "--path", folder, "--where", "created_step=99")
    assert (done.code, done.out, done.err) == (0, "", "no entries meet the condition\n")
    monkeypatch.setenv("COLUMNS", "120")
    done = comprl_bank("list", "--path", folder, "--where", "created_step=4")
    (entry,) = [entry for entry in contents(folder) if entry.created_step == 4]
    header, line = done.out.splitlines()
    assert header.split() == ["id", "tasks", "step", "uses", "success", "title", "/", "content"]
    text = ["lesson", "4", "/", "open", "the", "door", "4"]
    assert line.split() == [entry.id[:8], "minihack", "4", "0", "-", "quarantined", *text]
    assert done.err == ""


@pytest.mark.parametrize("width", [80, 140])
def test_a_list_shows_the_field_that_it_is_sorted_by(
    comprl_bank: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    def shown(field: str) -> tuple[str, list[str]]:
        done = comprl_bank("list", "--path", folder, "--sort", field, "--reverse", "--where", "uses>=1")
        *header, first, second, third = done.out.splitlines()
        return " ".join(" ".join(header).split()), [first, second, third]

    monkeypatch.setenv("COLUMNS", str(width))
    header, rows = shown("posterior_success")
    assert header == f"posterior id {'tasks step ' if width > 99 else ''}uses success success title / content"
    values = [line.partition(" lesson")[0].split()[-1] for line in rows]
    assert values == ["0.857", "0.333", "0.167"]  # (5 + 1) / (5 + 2), (0 + 1) / (1 + 2), (1 + 1) / (10 + 2)
    assert {shown(field)[0] for field in ("uses", "success_rate", "title")} == {
        header.removeprefix("posterior ").replace("success success", "success")
    }
    assert re.search(r" \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S* +lesson", shown("created_at")[1][0])


def test_a_long_text_is_cut_at_the_width_of_the_terminal(
    comprl_bank: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (entry,) = [entry for entry in contents(folder) if entry.title == "lesson 2"]
    long = entry.model_copy(update={"content": "one\ntwo " + 60 * "more "})

    async def lengthen() -> None:
        store = await EmbeddedStore.open(folder, embedding=None)
        await store.upsert([long], await FakeEmbedder().embed_documents(["x"]))
        await store.close()

    asyncio.run(lengthen())
    for width in (80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        (_, line) = comprl_bank("list", "--path", folder, "--where", "title=lesson 2").out.splitlines()
        assert "lesson 2 / one two more" in line and line.rstrip().endswith("…") and len(line) <= width


def test_the_table_has_room_for_texts_next_to_several_tasks(
    comprl_bank: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    (entry,) = [entry for entry in contents(folder) if len(entry.tasks) == 2]
    lines = comprl_bank("list", "--path", folder).out.splitlines()
    (line,) = [line for line in lines if line.startswith(entry.id[:8])]
    assert f"{entry.tasks[0]} +1 " in line and line.rstrip().endswith(f"{entry.title} / {entry.content}")


def test_show_prints_text_counters_and_lineage(comprl_bank: Run, folder: Path) -> None:
    child = contents(folder)[-1]
    done = comprl_bank("show", child.id[:6], "--path", folder)
    assert f"{child.parents[0]} (replaced)" in done.out and "call-6" in done.out
    assert done.out.endswith("\nbetter lesson\nsearch for the key\n")
    created, retrieved = re.findall(r"^(?:created|last retrieved) at +(.+?) *$", done.out, re.MULTILINE)
    assert datetime.fromisoformat(created).timestamp() == int(child.created_at) and retrieved == "-"
    (fields,) = comprl_bank("show", child.id, "--path", folder, "--json").objects
    assert fields["content"] == child.content and fields["children"] == []
    gone = comprl_bank("show", child.parents[0], "--path", folder)
    assert gone == (2, "", f"comprl bank: no entry has id '{child.parents[0]}'; it was replaced by {child.id}\n")


def test_show_prints_tasks_and_what_became_of_the_entry_in_each(comprl_bank: Run, folder: Path) -> None:
    entries = contents(folder)
    assert re.search(r"^tasks +alfworld, minihack *$", comprl_bank("show", entries[-1].id, "--path", folder).out, re.M)
    shown = comprl_bank("show", entries[0].id, "--path", folder).out
    assert re.search(r"^usage +minihack: 1 of 10 successes *$", shown, re.M)
    assert re.search(r"^posterior success +0.167 *$", shown, re.M)


def test_show_compares_an_entry_with_the_free_half(comprl_bank: Run, folder: Path) -> None:
    id = contents(folder)[0].id

    async def compare() -> None:
        bank = await ExperienceBank.open(BankConfig(path=str(folder)), None)
        for success, free, asked in ((True, 0.5, False), (True, 0.25, False), (False, 0.75, True)):
            bank.record_outcome([id], success, task="maze", asked=asked)
            bank.record_comparison([id], success, free, task="maze", asked=asked)
        await bank.close()

    asyncio.run(compare())
    shown = " ".join(comprl_bank("show", id, "--path", folder).out.split())
    # Two uses and half an episode that asked: 2 of 2.5 successes, and 0.5 + 0.25 + 0.75 / 2 = 1.125 without.
    assert "maze: 2 of 2 successes, 0 of 1 through answers, of 2.5 compared 80% success (45% without)" in shown
    assert "minihack: 1 of 10 successes;" not in shown  # none of those could be compared


def test_an_id_prefix_must_be_unique() -> None:
    entries = [Experience(id=id, title="", content="c") for id in ("abc", "abd", "x")]
    assert read.find_entry(entries, "abc").id == "abc" and read.find_entry(entries, "x").id == "x"
    with pytest.raises(ValueError, match="2 ids start with 'a': abc, abd"):
        read.find_entry(entries, "a")
    for missing in ("", "y"):
        with pytest.raises(ValueError, match=f"no entry has id '{missing}'"):
            read.find_entry(entries, missing)


@pytest.mark.parametrize("conditions", [[], ["--where", "tasks=minihack", "uses>=5"]])
def test_export_writes_a_verified_snapshot(
    comprl_bank: Run, folder: Path, tmp_path: Path, conditions: list[str]
) -> None:
    target = tmp_path / "made" / "here"
    done = comprl_bank("export", target, "--path", folder, *conditions)
    expected = contents(folder)[: 2 if conditions else None]
    assert done == (0, f"exported {len(expected)} entries to {target}\n", "")
    snapshot = read_snapshot(target, None)
    assert snapshot.entries == expected
    vectors = asyncio.run(FakeEmbedder().embed_documents([entry.text for entry in expected]))
    assert np.array_equal(snapshot.vectors, vectors)
    assert [path.name for path in target.parent.iterdir()] == ["here"]


def test_export_into_the_bank_itself_is_refused(comprl_bank: Run, folder: Path) -> None:
    before = contents(folder)
    done = comprl_bank("export", folder, "--path", folder)
    assert done.code == 2 and "holds other files" in done.err and contents(folder) == before


def test_verify(comprl_bank: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert comprl_bank("verify", "--path", folder) == (0, "6 entries, no problems found\n", "")

    async def short(self: EmbeddedStore) -> int:
        return 5

    monkeypatch.setattr(EmbeddedStore, "count", short)  # as an engine that lost a point would answer
    done = comprl_bank("verify", "--path", folder)
    assert done.code == 1 and done.out == "the store counts 5 entries, but lists 6\n"


def test_the_text_of_an_entry_cannot_control_the_terminal(comprl_bank: Run, folder: Path) -> None:
    evil = "\x1b]0;owned\x07\x9b31m\u202e\r\x7f[bold]up"
    id = "00000000-0000-4000-8000-000000000001"
    entry = Experience(id=id, title=evil, content=evil, tasks=(evil,), parents=(evil,), created_at=8e9)

    async def plant() -> None:
        store = await EmbeddedStore.open(folder, embedding=None)
        await store.upsert([entry], await FakeEmbedder().embed_documents(["x"]))
        await store.close()

    asyncio.run(plant())
    for arguments in (["list"], ["list", "--json"], ["stats"], ["stats", "--json"], ["show", entry.id], ["verify"]):
        done = comprl_bank(*arguments, "--path", folder)
        assert done.code == 0 and not set(done.out + done.err) & set(evil) & set("\x1b\x07\x9b\u202e\r\x7f")
    assert "[bold]up" in comprl_bank("show", entry.id, "--path", folder).out
    assert comprl_bank("list", "--where", "tasks~owned", "--json", "--path", folder).objects[0]["title"] == evil
    hint = comprl_bank("search", "key", "--task", f"{evil}!", "--path", folder).err
    assert "did you mean" in hint and not set(hint) & set("\x1b\x07\x9b\u202e\r\x7f")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "--where", "colour=red"], "no field 'colour'; the fields are ancestors, asked, asked_successes, "),
        (["list", "--sort", "colour"], "--sort: no field 'colour'; the fields are ancestors, asked, asked_successes, "),
        (["list", "--where", "usess>=5"], "no field 'usess'; did you mean uses? the fields are ancestors, asked, "),
        (["list", "--sort", "succes_rate"], "--sort: no field 'succes_rate'; did you mean success_rate? the fields "),
        (["show", "zz"], "no entry has id 'zz'"),
        (["stats", "--collection", "c"], "--collection is only for --url"),
    ],
)
def test_an_error_is_one_line(comprl_bank: Run, folder: Path, arguments: list[str], message: str) -> None:
    done = comprl_bank(*arguments, "--path", folder)
    assert done.code == 2 and done.out == "" and done.err.startswith("comprl bank: ") and message in done.err
    assert done.err.count("\n") == 1


def test_the_folder_of_a_run_leads_to_its_bank(comprl_bank: Run, folder: Path) -> None:
    done = comprl_bank("stats", "--path", folder.parent)
    assert done.code == 2 and done.err.endswith(f"it has no bank.json; {folder} is one\n")


def test_reading_a_missing_bank_does_not_create_it(comprl_bank: Run, tmp_path: Path) -> None:
    done = comprl_bank("stats", "--path", tmp_path / "typo")
    assert done.code == 2 and "is not an experience bank" in done.err and not (tmp_path / "typo").exists()


def test_an_unreachable_server_is_an_error_of_one_line(comprl_bank: Run) -> None:
    done = comprl_bank("stats", "--url", "http://127.0.0.1:1", "--collection", "c")
    assert done.code == 2 and done.err.count("\n") == 1 and "127.0.0.1:1" in done.err


def test_a_server_needs_the_name_of_the_bank(comprl_bank: Run) -> None:
    done = comprl_bank("stats", "--url", "http://127.0.0.1:1")
    assert done.code == 2 and "--url needs --collection" in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stats"], "one of the arguments --path --url is required"),
        (["stats", "--path", "x", "--url", "http://h"], "not allowed with argument --path"),
        (["list", "--path", "x", "--limit", "-1"], "argument --limit: must be a whole number of at least 0, got -1"),
        (["list", "--path", "x", "--limit", str(2**31)], f"argument --limit: must be at most {2**31 - 1}, got {2**31}"),
        (["list", "--path", "x", "--limit", "x"], "argument --limit: must be a whole number of at least 0, got x"),
        (["fly"], "unknown 'fly'; allowed: stats"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main.main(["bank", *arguments])
    assert caught.value.code == 2 and message in capsys.readouterr().err


async def test_search_fetches_more_hits_until_enough_meet_the_conditions() -> None:
    asked: list[int] = []

    class Source:
        async def search(self, query: str, limit: int) -> list[tuple[Experience, float]]:
            asked.append(limit)
            hits = [(Experience(id=str(n), title="", content=query, retrievals=n), 1 - n / 100) for n in range(50)]
            return hits[:limit]

    source: Any = Source()
    found = await read.matching_hits(source, "q", 3, lambda entry: entry.retrievals % 10 == 9)
    assert [entry.id for entry, _ in found] == ["9", "19", "29"] and asked == [3, 12, 48]
    assert await read.matching_hits(source, "q", 3, lambda entry: entry.retrievals == 49) == [
        (Experience(id="49", title="", content="q", retrievals=49), 1 - 49 / 100)
    ]


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (["--task", "minihak"], "nothing found: no entry has the task minihak; did you mean minihack?\n"),
        (["--where", "uses>100"], "nothing found\n"),
    ],
)
def test_a_search_that_can_find_nothing_loads_no_embedder(
    comprl_bank: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, condition: list[str], message: str
) -> None:
    async def refuse(*_: Any) -> None:
        raise ValueError("the embedder was loaded")

    monkeypatch.setattr(read, "load_embedder", refuse)
    assert comprl_bank("search", "key", "--path", folder, *condition) == (0, "", message)
    assert comprl_bank("search", "key", "--path", folder).err == "comprl bank: the embedder was loaded\n"


@pytest.mark.slow
def test_search_with_the_embedder_the_bank_was_built_with(comprl_bank: Run, folder: Path) -> None:
    assert comprl_bank("reembed", "--path", folder, "--embedder", "builtin").code == 0
    done = comprl_bank("search", "where is the key?", "--path", folder, "--limit", "2", "--json")
    best, second = done.objects
    assert best["title"] == "better lesson" and 1 >= best["score"] > second["score"]
    (only,) = comprl_bank(
        "search", "where is the key?", "--path", folder, "--task", "alfworld", "--limit", "1", "--json"
    ).objects
    assert only["tasks"] == ["alfworld", "minihack"]
    nothing = comprl_bank("search", "key", "--path", folder, "--where", "uses>100")
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "nothing found\n")
    mistyped = comprl_bank("search", "key", "--path", folder, "--task", "minihak").err
    assert mistyped == "nothing found: no entry has the task minihak; did you mean minihack?\n"
    assert comprl_bank("search", "key", "--path", folder, "--task", "x").err.endswith("no entry has the task x\n")
    assert json.loads((folder / "bank.json").read_text())["embedding"]["model"].endswith("MiniLM-L6-v2")
