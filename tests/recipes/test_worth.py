"""The quickstart's last lines and figure, from files written by hand."""

import json
from pathlib import Path

from recipes.miniature.worth import best_entry, draw, worth


def write(file: Path, records: list[dict]) -> None:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


def evaluation(step: int, **success: float) -> dict[str, float]:
    record: dict[str, float] = {"step": step}
    for mode, value in success.items():
        record |= {f"comprl/eval/success_{mode}": value, f"comprl/eval/episodes_{mode}": 192.0}
        record |= {f"comprl/eval/success_{mode}_low": value - 0.05, f"comprl/eval/success_{mode}_high": value + 0.06}
    return record


def a_run(folder: Path) -> Path:
    write(
        folder / "evaluations.jsonl",
        [evaluation(0, **{"with": 0.14, "without": 0.12}), evaluation(30, **{"with": 0.5, "without": 0.2})],
    )
    reads = [("a", "iron vault\nworked: first up", True)] * 2 + [("b", "iron fox\nseen: dust", False)] * 5
    reads += [("c", "iron vault\nworked: first up second up", success) for success in (True, True, False)]
    events = [{"event": "read", "entry": entry, "text": text, "success": success} for entry, text, success in reads]
    write(folder / "experience.jsonl", [*events, {"event": "written", "entry": "d", "title": "t", "content": "c"}])
    steps = [{"step": step, "data": {"comprl/free/success": 0.1}} for step in range(1, 8)]
    write(folder / "metrics.jsonl", [{"step": 0, "data": {}}, *steps])
    return folder


def test_the_last_evaluation_is_compared_with_the_first(tmp_path: Path) -> None:
    lines = worth(a_run(tmp_path)).splitlines()
    assert "in 192 episodes of known rules under new names" in lines[0]
    assert lines[1].split() == ["before", "training", "12", "%", "(7", "to", "18)"]
    assert lines[2].endswith("without it   20 %  (15 to 26)")
    assert lines[3].endswith("with it      50 %  (45 to 56)  +30 points")
    assert lines[4] == 'The entry with most successes: "iron vault / worked: first up", 2 of 2 episodes succeeded'


def test_a_run_without_evaluations_says_so(tmp_path: Path) -> None:
    assert "no evaluation" in worth(tmp_path)


def test_an_arm_without_experience_gets_a_figure_and_a_sentence(tmp_path: Path) -> None:
    write(tmp_path / "evaluations.jsonl", [evaluation(0, without=0.12), evaluation(30, without=0.2)])
    with (tmp_path / "evaluations.jsonl").open("a") as file:
        file.write('{"step": 60, "comp')  # what a kill has left
    write(tmp_path / "metrics.jsonl", [{"step": step, "data": {"comprl/free/success": 0.1}} for step in range(1, 8)])
    assert worth(tmp_path) == "What experience was worth is not known: the run had none."
    assert draw(tmp_path, tmp_path / "worth.png").stat().st_size > 5000


def test_of_equally_many_successes_the_entry_with_fewer_reads_is_shown(tmp_path: Path) -> None:
    assert best_entry(a_run(tmp_path) / "experience.jsonl") == ("iron vault", "worked: first up", 2, 2)
    assert best_entry(tmp_path / "none.jsonl") is None


def test_the_figure_is_drawn_without_guided_episodes_too(tmp_path: Path) -> None:
    file = draw(a_run(tmp_path), tmp_path / "worth.png")
    assert file.stat().st_size > 5000 and file.with_suffix(".svg").exists()
