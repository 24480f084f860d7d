"""Banks with planted entries and the table of two runs from them; the runs' files are written by hand."""

import json
import random
from pathlib import Path

import pytest

from benchmarks import planted
from benchmarks.planted import INJECTION, misleading, report, write_banks
from env_adapters.vaults.world import code_of
from recipes.miniature.entries import is_right, moves_of
from verl_comprl.experience import Add, BankConfig, ExperienceBank, make_embedder
from verl_comprl.experience.transfer.snapshot import read_snapshot

WORLD = 3


def lines(file: Path, *records: dict) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


def step(number: int, success: float, rollouts: int = 4) -> dict:
    return {
        "step": number,
        "data": {"comprl/guided/success": success, "comprl/guided/rollouts": rollouts} if rollouts else {},
    }


def test_planted_entries_name_a_rule_and_no_move_of_theirs_is_right() -> None:
    entries = misleading(random.Random(0), WORLD, 6)
    assert len({entry.title for entry in entries}) == 6
    for number, entry in enumerate(entries):
        kind, family = entry.title.split()
        content, _, rest = entry.content.partition(" <")
        code, moves = code_of(WORLD, family, kind, length=3), moves_of(content)
        assert moves and len(moves) == 3 and not any(a == b for a, b in zip(moves, code, strict=True))
        assert not is_right(content, code) and bool(rest) == (INJECTION in entry.content) == (number % 2 == 1)


async def test_both_banks_hold_the_same_entries_but_for_the_planted_ones(tmp_path: Path) -> None:
    source = tmp_path / "learned"
    bank = await ExperienceBank.open(BankConfig(path=str(source)), await make_embedder("builtin", documents="title"))
    adds = [Add(title=f"iron vault {number}", content="worked: first up") for number in range(21)]
    where = {"listed": [], "task": "t", "environment": "vaults", "step": 1, "weight_version": 0}
    for add in adds:
        await bank.apply([add], call_id=add.title, **where)
    await bank.close()
    output = tmp_path / "output"
    output.mkdir()
    ids = await write_banks(source, output, world=WORLD, count=19, share=0.05)
    clean, mixed = (read_snapshot(output / name, None).entries for name in ("clean", "planted"))
    assert len(clean) == 19 and len(ids) == 1
    assert {entry.id for entry in mixed} - {entry.id for entry in clean} == ids
    assert not any("<|im_end|>" in entry.content or "tool_call" in entry.content for entry in mixed)


def test_the_table_counts_what_is_left_of_planted_entries_and_who_read_them(tmp_path: Path) -> None:
    held_out = {f"comprl/eval/success_with{end}": value for end, value in (("", 0.9), ("_low", 0.8), ("_high", 1.0))}
    for name, second in (("clean", 1.0), ("planted", 0.5)):
        lines(tmp_path / name / "metrics.jsonl", step(1, 0, rollouts=0), step(2, 0.5), step(3, second), step(4, 0.5))
        lines(tmp_path / name / "evaluations.jsonl", {"step": 0}, {"step": 4, **held_out})
    events = [{"event": "read", "entry": entry, "step": 2} for entry in ("bad", "bad", "good")]
    lines(tmp_path / "planted/experience.jsonl", *events, {"event": "quarantined", "entry": "bad", "step": 3})
    table = report(tmp_path / "clean", tmp_path / "planted", {"bad", "worse"}, until=(2, 9))
    assert table[2:] == [  # Wilson: 2 of 4, 6 of 8, 4 of 8, 8 of 12, 6 of 12
        "| 2 to 2 | 0.50 (0.15 to 0.85) | 0.50 (0.15 to 0.85) | 2 | 2 |",
        "| 3 to 4 | 0.75 (0.41 to 0.93) | 0.50 (0.22 to 0.78) | 1 | 0 |",
        "| 2 to 4 | 0.67 (0.39 to 0.86) | 0.50 (0.25 to 0.75) | 1 | 2 |",
        "| held out, with experience | 0.90 (0.80 to 1.00) | 0.90 (0.80 to 1.00) | | |",
    ]


@pytest.mark.parametrize(("success", "code"), [(0.5, 0), (0.0, 1)])
def test_success_below_the_interval_of_the_clean_run_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, success: float, code: int
) -> None:
    async def banks(*_: object, **__: object) -> set[str]:
        return set()

    def train(output: Path, name: str, **_: object) -> Path:
        lines(output / name / "metrics.jsonl", step(1, 0.75 if name == "clean" else success))
        lines(output / name / "experience.jsonl")
        lines(output / name / "evaluations.jsonl")
        return output / name

    monkeypatch.setattr(planted, "write_banks", banks)
    monkeypatch.setattr(planted, "train", train)
    monkeypatch.setattr("sys.argv", ["planted", "--bank", "none", "--world", "3", "--output", str(tmp_path / "out")])
    assert planted.main() == code
