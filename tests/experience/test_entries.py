"""The table of entries: an entry that takes the place of its own earlier state."""

from verl_comprl.experience import Experience, derive_id
from verl_comprl.experience.entries import EntryTable


def made(name: str, **fields: object) -> Experience:
    return Experience.model_validate({"id": derive_id(name), "title": name, "content": "c", **fields})


def test_an_entry_that_is_there_is_replaced_in_its_place() -> None:
    old, root = derive_id("old"), derive_id("root")
    table = EntryTable([made("a", record_id="1", parents=(old,), ancestors=(old,)), made("b", created_at=5.0)], 9)
    again = made("a", record_id="2", parents=(root,), ancestors=(root,), quarantined="harmful")
    table.change([again], ())
    assert [entry.title for entry in table.by_id.values()] == ["a", "b"] and table.by_id[again.id] == again
    assert table.quarantined == {again.id}
    assert table.current(root) == again.id and table.current(old) is None
    table.change([made("a")], ())
    assert table.quarantined == frozenset() and table.current(root) is None
    table.change((), [again.id])
    assert [entry.title for entry in table.by_id.values()] == ["b"]
