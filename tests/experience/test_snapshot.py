"""Saving and restoring, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from fake_embedder import FakeEmbedder

from verl_comprl.experience import Add, BankConfig, ExperienceBank, SnapshotError


async def fill(bank: Any, apply: Any, count: int, call_id: str = "call") -> None:
    operations = [Add(title=f"lesson {n}", content=f"line\u2028{n} é") for n in range(count)]
    await apply(bank, *operations, call_id=call_id)


async def test_round_trip_into_another_bank(open_bank: Any, apply: Any, tmp_path: Path) -> None:
    source = await open_bank("source")
    await fill(source, apply, 40)
    bank_before = (await source.retrieve("lesson 7")).entry
    source.record_outcome([bank_before.id], success=True)
    await source.save(tmp_path / "snapshot")
    target = await open_bank("target")
    await fill(target, apply, 3, call_id="to be replaced")
    await target.restore(tmp_path / "snapshot")
    assert target.entries() == source.entries()
    await target.save(tmp_path / "again")
    for name in ("entries.jsonl", "vectors.safetensors", "manifest.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "snapshot" / name).read_bytes()
    assert (await apply(target, Add(title="x", content="y"))).repeated  # the calls in the snapshot are known
    await target.close()
    assert (await open_bank("target")).entries() == source.entries()


async def test_an_empty_bank_and_saving_twice(bank: Any, apply: Any, tmp_path: Path) -> None:
    await bank.save(tmp_path / "snapshot")
    await fill(bank, apply, 2)
    await bank.restore(tmp_path / "snapshot")
    assert len(bank) == 0 and (await bank.retrieve("lesson")).status == "nothing"
    await fill(bank, apply, 3)
    await bank.save(tmp_path / "snapshot")
    await bank.restore(tmp_path / "snapshot")
    assert len(bank) == 3
    assert [path.name for path in tmp_path.iterdir() if "building" in path.name] == []


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("entries.jsonl", lambda data: data[:-5], "entries.jsonl does not have the checksum"),
        ("vectors.safetensors", lambda data: data[:-1] + b"\xff", "vectors.safetensors does not have the checksum"),
        (
            "manifest.json",
            lambda data: data.replace(b'"count": 5', b'"count": 6'),
            "should have 6 entries, has 5 and 5",
        ),
        ("manifest.json", lambda data: data.replace(b'"schema_version": 1', b'"schema_version": 7'), "version 7"),
        ("manifest.json", lambda data: data[:20], "incomplete or damaged"),
        ("manifest.json", None, "incomplete or damaged"),
        ("vectors.safetensors", None, "incomplete or damaged"),
    ],
)
async def test_damage_is_found_and_the_bank_left_alone(
    bank: Any, apply: Any, tmp_path: Path, name: str, damage: Any, message: str
) -> None:
    await fill(bank, apply, 5)
    await bank.save(tmp_path / "snapshot")
    file = tmp_path / "snapshot" / name
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage(file.read_bytes()))
    before = bank.entries()
    with pytest.raises(SnapshotError, match=message):
        await bank.restore(tmp_path / "snapshot")
    assert bank.entries() == before and (await bank.retrieve("lesson 1")).status == "found"


async def test_another_embedder_is_refused(bank: Any, apply: Any, tmp_path: Path) -> None:
    await fill(bank, apply, 2)
    await bank.save(tmp_path / "snapshot")
    other = await ExperienceBank.open(BankConfig(path=str(tmp_path / "other")), FakeEmbedder("other"))
    with pytest.raises(SnapshotError, match="another embedder: model was 'fake', is 'other'"):
        await other.restore(tmp_path / "snapshot")
    await other.close()


async def test_a_folder_with_other_files_is_not_overwritten(bank: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(SnapshotError, match="holds other files"):
        await bank.save(tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "keep"
