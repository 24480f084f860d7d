"""Bank commands that change a bank: their confirmation, and the bank afterwards."""

import asyncio
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import qdrant_edge as edge
from fake_embedder import FakeEmbedder
from test_cli_bank import contents

from verl_comprl.cli.bank import write
from verl_comprl.experience import BankConfig, Experience, ExperienceBank
from verl_comprl.experience.schema import derive_id
from verl_comprl.experience.transfer.snapshot import read_snapshot, write_snapshot
from verl_comprl.manager.kept_quarantines import KeptQuarantines

Run = Callable[..., Any]


def answer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def imported(folder: Path) -> list[Experience]:
    """Return the entries of a bank as another one takes them over."""
    return [entry.model_copy(update={"record_id": ""}) for entry in contents(folder)]


def steps(folder: Path) -> list[int]:
    return [entry.created_step for entry in contents(folder)]


@pytest.mark.parametrize(
    ("typed", "left", "printed"),
    [
        ("y\n", [2, 4, 5, 6], "delete 2 of 6 entries: done\n"),
        ("YES\n", [2, 4, 5, 6], "delete 2 of 6 entries: done\n"),
        ("n\n", [0, 2, 3, 4, 5, 6], "nothing was changed\n"),
        ("\n", [0, 2, 3, 4, 5, 6], "nothing was changed\n"),
    ],
)
def test_delete_shows_the_entries_and_asks_before_deleting(
    comprl_bank: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, typed: str, left: list[int], printed: str
) -> None:
    answer(monkeypatch, typed)
    done = comprl_bank("delete", "--path", folder, "--where", "uses>=1", "success_rate<0.2")
    assert done.code == 0 and "delete 2 of 6 entries? [y/N] " in done.out and done.out.endswith(printed)
    assert "lesson 0" in done.out and "lesson 3" in done.out and "lesson 2" not in done.out
    assert steps(folder) == left


def test_a_closed_input_is_an_error_and_nothing_is_changed(
    comprl_bank: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, "")
    done = comprl_bank("delete", "--path", folder, "--where", "uses>=1")
    assert done.code == 2 and "nothing was changed; --yes skips the question" in done.err and len(steps(folder)) == 6


def test_interrupting_the_question_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, comprl_bank: Run, folder: Path
) -> None:
    import builtins
    import signal

    def interrupted(_: str) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return "y"

    monkeypatch.setattr(builtins, "input", interrupted)
    done = comprl_bank("delete", "--path", folder, "--where", "uses>=1")
    assert done.code == 0 and done.out.endswith("nothing was changed\n") and len(steps(folder)) == 6


def test_dry_run_changes_nothing(comprl_bank: Run, folder: Path) -> None:
    done = comprl_bank("delete", "--path", folder, "--where", "uses>=1", "--dry-run", "--yes")
    assert done.code == 0 and done.out.endswith("would delete 3 of 6 entries\n") and len(steps(folder)) == 6


def test_how_many_of_the_entries_are_shown_is_said(
    comprl_bank: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_shown = comprl_bank("delete", "--path", folder, "--where", "uses>=1", "--dry-run").out
    monkeypatch.setattr(write, "_SHOWN", 2)
    done = comprl_bank("delete", "--path", folder, "--where", "uses>=1", "--dry-run")
    *_, note, would = done.out.splitlines()
    assert note == "the first 2 of these 3 entries are shown" and would == "would delete 3 of 6 entries"
    assert "shown" not in all_shown and len(all_shown.splitlines()) == len(done.out.splitlines())


@pytest.mark.parametrize("verb", ["delete", "quarantine", "release"])
def test_a_selection_of_entries_is_required(comprl_bank: Run, folder: Path, verb: str) -> None:
    done = comprl_bank(verb, "--path", folder, "--yes")
    assert done == (2, "", f"comprl bank: {verb} needs --where or --id to select entries\n") and len(steps(folder)) == 6


def test_ids_and_conditions_must_both_hold(comprl_bank: Run, folder: Path) -> None:
    first, second, *_ = [entry.id for entry in contents(folder)]
    both = ("--id", first[:8], second[:8], first)
    done = comprl_bank("delete", "--path", folder, *both, "--where", "success_rate<0.5", "--yes")
    assert done.out.endswith("delete 1 of 6 entries: done\n") and steps(folder) == [2, 3, 4, 5, 6]
    assert comprl_bank("delete", "--path", folder, "--id", first, "--yes").code == 2


def broken_entry(folder: Path) -> str:
    """Damage the oldest entry of a bank, as another program could; returns its id."""

    async def damage() -> str:
        bank = await ExperienceBank.open(BankConfig(path=str(folder)), None)
        id = bank.entries()[0].id
        store: Any = bank._ledger.store
        store._shard.update(edge.UpdateOperation.set_payload([id], {"entry": "{}"}))
        await bank.close()
        return id

    return asyncio.run(damage())


def test_an_entry_that_cannot_be_read_is_deleted_together_with_others(
    comprl_bank: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [broken_entry(folder), contents(folder)[0].id]
    done = comprl_bank("delete", "--path", folder, "--id", *ids, "none", "--yes")
    assert done.code == 2 and "no entry has id 'none'" in done.err and "deleted" not in done.out
    answer(monkeypatch, "n\n")
    done = comprl_bank("delete", "--path", folder, "--id", *ids)
    assert done.code == 0 and done.out.endswith("nothing was changed\n") and len(steps(folder)) == 5
    done = comprl_bank("delete", "--path", folder, "--id", *ids, "--yes")
    assert done.code == 0 and done.out.startswith("deleted 1 entries that could not be read\n")
    assert done.out.endswith("delete 1 of 5 entries: done\n") and len(steps(folder)) == 4
    assert comprl_bank("verify", "--path", folder).code == 0


def test_quarantine_and_release(comprl_bank: Run, folder: Path) -> None:
    def quarantined() -> dict[int, str]:
        return {entry.created_step: entry.quarantined for entry in contents(folder) if entry.quarantined}

    assert quarantined() == {4: "bad record"}
    done = comprl_bank("quarantine", "--path", folder, "--where", "tasks=minihack", "--yes", "--reason", "seen lying")
    assert done.out.endswith(
        "quarantine 3 of 6 entries: done\n"
    )  # an entry that is quarantined already keeps its reason
    assert quarantined() == {0: "seen lying", 2: "seen lying", 4: "bad record", 6: "seen lying"}
    done = comprl_bank("release", "--path", folder, "--where", "quarantined~lying", "uses>=1", "--yes")
    assert done.out.endswith("release 2 of 6 entries: done\n") and set(quarantined()) == {4, 6}
    assert comprl_bank("quarantine", "--path", folder, "--where", "uses>=0", "--yes", "--reason", "").code == 2


def test_import_creates_a_bank_and_adds_only_missing_entries(comprl_bank: Run, folder: Path, tmp_path: Path) -> None:
    comprl_bank("export", tmp_path / "some", "--path", folder, "--where", "uses>=1")
    comprl_bank("export", tmp_path / "all", "--path", folder)
    new = tmp_path / "new"
    done = comprl_bank("import", tmp_path / "some", "--path", new)
    assert done == (0, "added 3 entries, skipped 0 and rejected 0; now 3\n", "")
    done = comprl_bank("import", tmp_path / "all", "--path", new)
    assert done == (0, "added 3 entries, skipped 3 and rejected 0; now 6\n", "")
    assert contents(new) == imported(folder)
    comprl_bank("export", tmp_path / "again", "--path", new)
    before, after = read_snapshot(tmp_path / "all", None), read_snapshot(tmp_path / "again", None)
    assert np.array_equal(before.vectors, after.vectors) and before.embedding == after.embedding


def test_import_keeps_texts_that_are_longer_than_the_defaults(comprl_bank: Run, folder: Path, tmp_path: Path) -> None:
    """Their run had larger limits."""
    comprl_bank("export", tmp_path / "all", "--path", folder)
    made = read_snapshot(tmp_path / "all", None)
    long = Experience(id=derive_id("long"), title="t" * 500, content=f"{'x y ' * 2000}end")
    write_snapshot(tmp_path / "long", [long], made.vectors[:1], made.embedding)
    assert comprl_bank("import", tmp_path / "long", "--path", tmp_path / "new").code == 0
    assert contents(tmp_path / "new") == [long]
    assert "skipped 1 " in comprl_bank("import", tmp_path / "long", "--path", tmp_path / "new").out


def export_newer(comprl_bank: Run, folder: Path, tmp_path: Path) -> tuple[Experience, Experience]:
    """Export a bank as ``all``, and an entry that says to replace one of it as ``newer``; returns both entries."""
    comprl_bank("export", tmp_path / "all", "--path", folder)
    before = read_snapshot(tmp_path / "all", None)
    parent, *_ = before.entries
    newer = Experience(id=derive_id("newer"), title="t", content="c", parents=(parent.id,))
    write_snapshot(tmp_path / "newer", [newer], before.vectors[:1], before.embedding)
    return parent, newer


def test_import_says_what_it_leaves_out_since_the_bank_has_replaced_it(
    comprl_bank: Run, folder: Path, tmp_path: Path
) -> None:
    export_newer(comprl_bank, folder, tmp_path)
    comprl_bank("import", tmp_path / "newer", "--path", tmp_path / "new")
    done = comprl_bank("import", tmp_path / "all", "--path", tmp_path / "new")
    assert done.out == (
        "added 5 entries, skipped 0 and rejected 0; now 6\n"
        "left out 1 entries under ids that were replaced; whether these had other texts cannot be told\n"
    )


def test_import_says_which_entries_it_would_have_replaced_and_keeps_them(
    comprl_bank: Run, folder: Path, tmp_path: Path
) -> None:
    parent, newer = export_newer(comprl_bank, folder, tmp_path)
    done = comprl_bank("import", tmp_path / "newer", "--path", folder)
    assert done.code == 0 and "added 1 entries" in done.out
    assert "1 entries of the bank are older versions of imported ones; they are kept" in done.out
    assert {parent.id, newer.id} <= {entry.id for entry in contents(folder)}


def test_import_with_another_embedder_is_refused_or_embedded_again(
    comprl_bank: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comprl_bank("export", tmp_path / "snapshot", "--path", folder)

    async def other() -> None:
        bank = await ExperienceBank.open(BankConfig(path=str(tmp_path / "other")), FakeEmbedder("other"))
        await bank.close()

    asyncio.run(other())
    done = comprl_bank("import", tmp_path / "snapshot", "--path", tmp_path / "other")
    assert done.code == 2 and "(model was 'fake', is 'other'); --reembed embeds its texts again" in done.err
    assert contents(tmp_path / "other") == []
    loaded = []

    async def load(_: Any, identity: dict[str, Any]) -> FakeEmbedder:
        loaded.append(identity["model"])
        return FakeEmbedder(identity["model"])

    monkeypatch.setattr(write, "load_embedder", load)
    done = comprl_bank("import", tmp_path / "snapshot", "--path", tmp_path / "other", "--reembed")
    assert done.code == 0 and loaded == ["other"] and contents(tmp_path / "other") == imported(folder)


@pytest.mark.parametrize(
    ("snapshot", "message"),
    [("nowhere", "there is no snapshot /"), ("hf://datasets/one", "hf://datasets/<user>/<name>, got")],
)
def test_importing_something_else_than_a_snapshot_is_refused(
    comprl_bank: Run, tmp_path: Path, snapshot: str, message: str
) -> None:
    done = comprl_bank("import", snapshot, "--path", tmp_path / "new")
    assert done.code == 2 and message in done.err and not (tmp_path / "new").exists()


@pytest.mark.parametrize("file", ["manifest.json", "data/entries.parquet", "vectors.safetensors"])
@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_a_snapshot_whose_files_are_something_else_is_refused_in_one_line(
    comprl_bank: Run, folder: Path, tmp_path: Path, file: str, kind: str
) -> None:
    comprl_bank("export", tmp_path / "s", "--path", folder)
    (tmp_path / "s" / file).unlink()
    if kind == "device":
        (tmp_path / "s" / file).symlink_to("/dev/null")
    else:
        os.mkfifo(tmp_path / "s" / file)
    done = comprl_bank("import", tmp_path / "s", "--path", tmp_path / "new")
    assert done.code == 2 and done.err.count("\n") == 1
    assert f"snapshot {tmp_path / 's'} is incomplete or damaged: its {file} is no regular file" in done.err


def test_a_huge_manifest_is_refused(comprl_bank: Run, folder: Path, tmp_path: Path) -> None:
    comprl_bank("export", tmp_path / "s", "--path", folder)
    os.truncate(tmp_path / "s" / "manifest.json", 2**40)
    done = comprl_bank("import", tmp_path / "s", "--path", tmp_path / "new")
    assert done.code == 2 and f"manifest.json has {2**40} bytes" in done.err and done.err.count("\n") == 1


def test_a_snapshot_may_consist_of_links_as_a_download_does(comprl_bank: Run, folder: Path, tmp_path: Path) -> None:
    comprl_bank("export", tmp_path / "s", "--path", folder)
    for number, file in enumerate(path for path in [*(tmp_path / "s").rglob("*")] if path.is_file()):
        file.symlink_to(file.rename(tmp_path / f"blob-{number}"))
    assert comprl_bank("import", tmp_path / "s", "--path", tmp_path / "new").code == 0
    assert contents(tmp_path / "new") == imported(folder)


def test_import_from_the_hub(comprl_bank: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comprl_bank("export", tmp_path / "all", "--path", folder)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tmp_path / "all"))
    assert comprl_bank("import", "hf://datasets/user/bank", "--path", tmp_path / "new").code == 0
    assert contents(tmp_path / "new") == imported(folder)


@pytest.mark.slow
def test_reembed_switches_to_another_embedder(comprl_bank: Run, folder: Path, tmp_path: Path) -> None:
    before = contents(folder)
    done = comprl_bank("reembed", "--path", folder, "--embedder", "builtin")
    assert (done.code, done.out) == (0, "embedded 6 entries with sentence-transformers/all-MiniLM-L6-v2\n")
    assert contents(folder) == before and comprl_bank("verify", "--path", folder).code == 0
    comprl_bank("export", tmp_path / "all", "--path", folder)
    assert read_snapshot(tmp_path / "all", None).vectors.shape == (6, 384)


@pytest.mark.parametrize(
    "forged", [{"schema_version": "\x1b[2J"}, {"embedding": {"\x1b[2J": "\x1b[2J", "dimension": 64}}]
)
def test_a_refused_snapshot_cannot_control_the_terminal(
    comprl_bank: Run, folder: Path, tmp_path: Path, forged: dict[str, Any]
) -> None:
    write_snapshot(tmp_path / "s", [], np.zeros((0, 64), np.float32), {"model": "fake", "dimension": 64})
    manifest = json.loads((tmp_path / "s" / "manifest.json").read_text())
    (tmp_path / "s" / "manifest.json").write_text(json.dumps(manifest | forged))
    done = comprl_bank("import", "--path", folder, tmp_path / "s")
    assert done.code == 2 and "2J" in done.err and "\x1b" not in done.err


def test_a_link_to_itself_is_no_snapshot(comprl_bank: Run, folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(link)
    imported = comprl_bank("import", "--path", tmp_path / "new", link)
    assert imported.code == 2 and f"there is no snapshot {link}" in imported.err
    for where in ((), ("--where", "uses>=1")):
        exported = comprl_bank("export", "--path", folder, link, *where)
        assert exported.code == 2 and f"snapshot {link} could not be written: " in exported.err
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".link")] == []


@pytest.mark.parametrize(
    "reason", ["", " ", "</think>", "2 of 9 successes, free half 0.50", "replaces\ta quarantined entry: misleads"]
)
def test_a_reason_is_none_that_a_run_gives_which_keeps_only_others(comprl_bank: Run, folder: Path, reason: str) -> None:
    done = comprl_bank("quarantine", "--path", folder, "--where", "created_step=2", "--reason", reason, "--yes")
    assert done.code == 2 and f"--reason {reason!r} must say why" in done.err
    assert not any(entry.quarantined for entry in contents(folder) if entry.created_step == 2)


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_what_the_next_start_of_the_banks_run_undoes_is_said(
    comprl_bank: Run, folder: Path, tmp_path: Path, checkpoint: bool, linked: bool
) -> None:
    if linked:
        (tmp_path / "run").mkdir()
        (link := tmp_path / "run" / "bank").symlink_to(folder)
        folder = link
    if checkpoint:
        (folder.parent / "global_step_5").mkdir()
    comprl_bank("export", "--path", folder, folder.parent / "snapshot")
    notes = {
        "quarantine --where created_step=2 --reason r --yes": "",
        "release --where created_step=2 --yes": "what the checkpoint has quarantined is so again",
        "delete --where created_step=2 --yes": "what was deleted is back, as long as it is not quarantined instead",
        f"import {folder.parent / 'snapshot'}": "what was imported is saved aside",
    }
    for command, note in notes.items():
        name, *arguments = command.split()
        done = comprl_bank(name, "--path", folder, *arguments)
        line = f"note: if the run in {folder.parent} goes on, it has the bank of its checkpoint again: {note}\n"
        assert done.code == 0 and (line in done.out) == (checkpoint and note != "")
        if name in ("quarantine", "release"):
            assert bool(KeptQuarantines(folder.parent).reasons()) == (checkpoint and name == "quarantine")
    done = comprl_bank("import", "--path", folder, folder.parent / "snapshot")  # adds nothing
    assert "added 0 entries" in done.out and "note: " not in done.out
