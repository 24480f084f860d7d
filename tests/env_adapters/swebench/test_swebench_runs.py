"""The runs of a grading: what tells those of the tests from those of their twins, and what a guess is worth."""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import permutations, product

import pytest

from env_adapters.swebench import grading
from env_adapters.swebench.evaluation import UNITTEST
from env_adapters.swebench.grading import Run, grade
from env_adapters.swebench.instances import Instance
from env_adapters.swebench.sandbox import Output, Sandbox
from env_adapters.swebench.verdict import Verdict
from env_adapters.swebench.work_tree import load_pack

Start = Callable[..., Sandbox]
RUNS = (Run.TESTS, Run.TESTS, Run.ONE_SPOILED, Run.ALL_SPOILED)
ORDERS = sorted(set(permutations(RUNS)), key=str)


def grade_by(answers: Iterable[set[str]], order: tuple[Run, ...], task: Instance, patch: pytest.MonkeyPatch) -> Verdict:
    """Grade a patch whose runs pass these tests of FAIL_TO_PASS, and all others."""
    left = iter(answers)

    def run(*arguments: object) -> tuple[dict[str, str], set[str]]:
        passing = next(left) | set(task.PASS_TO_PASS)
        names = task.FAIL_TO_PASS + task.PASS_TO_PASS
        return {name: "PASSED" if name in passing else "FAILED" for name in names}, set(task.FAIL_TO_PASS)

    patch.setattr(grading, "_run", run)
    patch.setattr(grading, "_order", lambda: list(order))
    return grade(task, b"x", lambda: pytest.fail("no sandbox is needed"), None)


def test_a_patch_that_chooses_runs_is_right_for_one_order_of_six_at_most(
    instances: dict[str, Instance], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it goes by: a clock, a guess, the number of a namespace."""
    task = instances["chronos-2"]
    real = {tuple(run is Run.TESTS for run in order) for order in ORDERS}
    assert len(real) == 6
    for choice in product([False, True], repeat=4):
        answers = [set(task.FAIL_TO_PASS) if passes else set() for passes in choice]
        won = [order for order in ORDERS if grade_by(answers, order, task, monkeypatch).resolved]
        assert {tuple(run is Run.TESTS for run in order) for order in won} == ({choice} & real)


def test_orders_are_drawn_at_random() -> None:
    assert {tuple(grading._order()) for _ in range(2000)} == set(ORDERS)


def test_a_twin_that_passes_counts_against_a_test_that_passes_only(
    instances: dict[str, Instance], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin of a test that fails may pass: it says the opposite."""
    task = instances["chronos-2"]
    first, *others = task.FAIL_TO_PASS
    for order in ORDERS:
        answers = [{first} if run is Run.TESTS else set(others) for run in order]
        assert grade_by(answers, order, task, monkeypatch) == Verdict(1, 3, 0)


class Recording:
    """Passes on what a sandbox is asked, and keeps it."""

    def __init__(self, sandbox: Sandbox, log: list[str]) -> None:
        self._sandbox, self._log = sandbox, log

    def exec(self, command: str, *, stdin: bytes = b"", **options: object) -> Output:
        # Without what may differ: random marks, and the texts of the tests.
        text = f"{command}\n{stdin.decode(errors='replace')}"
        text = re.sub(r"\b[0-9a-f]{32}\b", "MARK", text)
        self._log.append(re.sub(r"<<'END'\n[\w+/=\n]*\nEND\n", "TEXT\n", text))
        return self._sandbox.exec(command, stdin=stdin, **options)  # type: ignore[arg-type]

    def read(self, path: str) -> bytes | None:
        self._log.append(f"read {path}")
        return self._sandbox.read(path)

    def close(self) -> None:
        self._sandbox.close()


@pytest.mark.parametrize("parser", [UNITTEST, "parse_log_pytest"])
def test_all_runs_ask_the_same_of_their_sandboxes(parser: str, start: Start, instances: dict[str, Instance]) -> None:
    """So numbers of processes, times of files and the length of a script's shell are the same in all of them."""
    task = instances["chronos-2"]
    if parser != UNITTEST:
        script = ": '>>>>> Start Test Output'\npython3 -m unittest\n: '>>>>> End Test Output'\n"
        task = replace(task, log_parser=parser, eval_type="pass_and_fail", eval_script=script)
    logs: dict[Run, list[str]] = {run: [] for run in Run}
    pack = load_pack(task, needed=True)
    for run, log in logs.items():
        made = grading._run(task, task.patch.encode(), lambda log=log: Recording(start(), log), pack, run)  # type: ignore[arg-type,return-value]
        assert made[1] == set(task.FAIL_TO_PASS)
    first, *others = logs.values()
    assert len(first) > 5 and "TEXT" in first[-1] and all(other == first for other in others)
