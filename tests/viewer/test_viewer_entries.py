"""Lineage, fate and use of entries, from the events of a run."""

from typing import Any

from run_files import unpack

from verl_comprl.viewer.comparison import Tally
from verl_comprl.viewer.entries import Entries


def written(entry: str, step: int, parents: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    event = {"event": "written", "entry": entry, "step": step, "title": f"title {entry}", "content": f"text {entry}"}
    return event | {"parents": [*parents], "task": "room", "episode": f"p{step}_0", "call": f"c-{entry}"} | more


def read(entry: str, episode: str, success: bool, **more: Any) -> dict[str, Any]:
    event = {"event": "read", "step": 9, "entry": entry, "text": f"title {entry}\ntext {entry}", "episode": episode}
    return event | {"task": "room", "goal": "", "success": success} | more


def rows(entries: Entries, free: dict[str, Tally] | None = None) -> dict[str, dict[str, Any]]:
    """Each entry's columns and details together, by id."""
    entries.compare(free or {})
    index, *blocks = map(unpack, entries.blocks("e"))
    details = [detail for block in blocks for detail in block]
    columns = index["columns"]
    cells = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return {cell["id"]: cell | detail for cell, detail in zip(cells, details, strict=True)}


def test_an_update_and_a_merge_end_their_parents() -> None:
    entries = Entries()
    entries.read_events(
        [
            written("a", 1),
            written("b", 2),
            written("c", 3, ("a",)),
            {"event": "removed", "step": 3, "entry": "a", "reason": "replaced", "call": "c-c"},
            written("d", 4, ("b", "c"), event="merged", tasks=["room"]),
            written("e", 5),
            {"event": "removed", "step": 6, "entry": "e", "reason": "evicted", "call": "x"},
            written("f", 7),
            {"event": "quarantined", "step": 8, "entry": "f", "reason": "bad record"},
        ]
    )
    found = rows(entries)
    fates = {id: (row["kind"], row["fate"], row["gone"]) for id, row in found.items()}
    assert fates == {
        "a": ("added", "replaced", 3),
        "b": ("added", "merged", 4),
        "c": ("updated", "merged", 4),
        "d": ("merged", "present", None),
        "e": ("added", "evicted", 6),
        "f": ("added", "quarantined", None),
    }
    order = [*found]
    assert [order[number] for number in found["d"]["parents"]] == ["b", "c"]
    assert found["c"]["episode"] == "p3_0" and found["c"]["call"] == "c-c" and found["f"]["reason"] == "bad record"
    assert len(entries) == 6 and entries.present == 2


def test_a_journal_without_removals_still_ends_what_was_replaced() -> None:
    entries = Entries()
    entries.read_events([written("a", 1), written("b", 5, ("a", "before the run"))])
    found = rows(entries)
    assert found["a"]["fate"] == "replaced" and found["a"]["gone"] == 5
    assert found["before the run"]["kind"] == "given"


def test_entries_that_the_bank_began_with_are_those_of_another_run() -> None:
    entries = Entries()
    given = {"event": "given", "step": 0, "entry": "g", "title": "old", "content": "known", "tasks": ["room"]}
    of_the_other = {"parents": ["of the other"], "weight_version": 4, "call": "of the other"}
    entries.read_events([given | of_the_other, written("a", 1), written("b", 2, ("g",))])
    found = rows(entries)
    assert found.keys() == {"g", "a", "b"} and (entries.given, entries.present) == (1, 2)
    row = found["g"]
    assert (row["kind"], row["title"], row["content"], row["tasks"]) == ("given", "old", "known", ["room"])
    assert (row["step"], row["call"], row["parents"], row["fate"], row["gone"]) == (None, None, [], "replaced", 2)


def test_an_updated_entry_has_the_tasks_of_its_parents_too() -> None:
    entries = Entries()
    entries.read_events([written("a", 1), written("b", 2, ("a",), task="maze", tasks=["maze", "room"])])
    found = rows(entries)
    assert found["a"]["tasks"] == ["room"]  # of an older release, which named only the episode's task
    assert found["b"]["tasks"] == ["maze", "room"]


def test_an_entry_that_a_resumed_run_wrote_again_counts_once() -> None:
    entries = Entries()
    entries.read_events([written("a", 3, title="old"), written("a", 3, title="new"), *2 * [read("a", "p_0", True)]])
    found = rows(entries)
    assert [*found] == ["a"] and found["a"]["title"] == "new" and found["a"]["uses"] == 1


def test_uses_are_compared_with_the_free_half_of_their_prompt_and_answers_counted_apart() -> None:
    entries = Entries()
    guided = [read("a", "p_0", True), read("a", "p_1", True), read("a", "q_0", False)]
    entries.read_events([written("a", 1), *guided, read("a", "q_1", True, asked=True)])
    row = rows(entries, {"p": Tally(4, 1), "q": Tally(4, 3)})["a"]
    assert (row["uses"], row["rate"], row["free"]) == (3, 2 / 3, (0.25 + 0.25 + 0.75) / 3)
    assert row["asked"] == [1, 1] and row["free_count"] == 8 and row["matched"] == 3
    assert row["gain_low"] < row["gain"] == 2 / 3 - 1.25 / 3 < row["gain_high"]


def test_next_to_the_free_half_stand_the_uses_that_are_compared_with_it() -> None:
    entries = Entries()
    entries.read_events([written("a", 1), read("a", "p_0", False), read("a", "x_0", True), read("a", "y_0", True)])
    row = rows(entries, {"p": Tally(4, 1)})["a"]
    assert (row["uses"], row["matched"], row["rate"]) == (3, 1, 2 / 3)
    assert (row["compared"], row["free"], row["gain"]) == (0, 0.25, -0.25)
    assert row["interval"][0] == 0 < row["interval"][1]


def test_an_entry_that_was_given_to_the_run_has_the_text_that_was_read() -> None:
    entries = Entries()
    entries.read_events([read("z", "p_0", True)])
    row = rows(entries)["z"]
    assert (row["kind"], row["title"], row["content"], row["step"]) == ("given", "title z", "text z", None)


def test_copies_of_a_text_are_compared_together() -> None:
    entries = Entries()
    entries.read_events(
        [
            *(written(id, 1, title="one", content="text") for id in "abc"),
            written("other", 1, title="one"),
            written("d", 2, ("a",)),
            read("a", "p_0", True),
            read("a", "q_0", True),
            read("c", "p_1", False),
            read("b", "q_1", True, asked=True),
            read("unread", "p_2", True, text=""),
            read("neither", "p_3", True, text=""),
        ]
    )
    found = rows(entries, {"p": Tally(4, 1), "q": Tally(4, 3)})
    assert [found[id]["gain_low"] for id in "abc"] == [None] * 3, "too few uses of each"
    (copies,) = entries.copies()
    order = [*found]
    assert [order[row] for row in copies["rows"]] == ["c", "b", "a"], "those in the bank first, then by uses"
    together = copies["columns"] | copies["details"]
    assert (together["uses"], together["matched"], together["rate"]) == (3, 3, 2 / 3)
    assert (together["free"], together["free_count"]) == ((0.25 + 0.75 + 0.25) / 3, 8)
    assert together["gain_low"] < together["gain"] == 2 / 3 - 1.25 / 3 < together["gain_high"]
