"""Selects the SWE-bench tasks to train on by a base model's success rate.

Owns the paper's filter: it keeps the tasks that a base model solved at least once, but in less than 80 % of its
attempts. The paper made 16 attempts per task and kept 124 tasks of SWE-bench Verified.

Usage: ``python -m env_adapters.swebench.select --rollouts FILE --output FILE``. The first file has one JSON object with
``task_id`` and ``success`` per line, for each attempt, as ``comprl env attempts`` writes it; the rows of the kept
tasks are written to the second file, which can be used as the option ``data``.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from env_adapters.swebench.instances import data_file, read_rows

HIGHEST_RATE = 0.8


def read_attempts(rollouts: Iterable[Mapping[str, Any]]) -> dict[str, list[bool]]:
    """Return whether the attempts at each task succeeded, by ``instance_id``.

    Args:
        rollouts: One mapping per attempt, with ``success`` and ``task_id``, which may also be SWE-bench's own id. One
            with ``error``, whose environment failed, says nothing about the model and is left out.

    Raises:
        ValueError: If a field is missing or of another type.
    """
    attempts: dict[str, list[bool]] = defaultdict(list)
    for number, rollout in enumerate(rollouts, 1):
        if rollout.get("error"):
            continue
        task_id, success = rollout.get("task_id"), rollout.get("success")
        if not isinstance(task_id, str) or not isinstance(success, bool | int | float) or success not in (0, 1):
            raise ValueError(f"rollout {number} needs 'task_id' (text) and 'success' (0 or 1), got {dict(rollout)!r}")
        attempts[task_id.removeprefix("swebench/")].append(bool(success))
    return dict(attempts)


def check_attempts(attempts: Mapping[str, list[bool]], tasks: Iterable[str], expected: int) -> None:
    """Check that each task was attempted as often as expected.

    Raises:
        ValueError: If one was not; rates of different numbers of attempts cannot be compared with the paper's.
    """
    wrong = {task: found for task in tasks if (found := len(attempts.get(task, []))) != expected}
    if wrong:
        task, found = next(iter(wrong.items()))
        raise ValueError(
            f"{len(wrong)} tasks do not have {expected} attempts, such as {task!r} with {found}; play the missing ones "
            "(comprl env attempts), or say --attempts 0"
        )


def is_kept(rate: float) -> bool:
    """Return whether a task with this success rate is kept for training."""
    return 0 < rate < HIGHEST_RATE


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m env_adapters.swebench.select", description=__doc__)
    parser.add_argument("--rollouts", type=Path, required=True, help="JSON lines with task_id and success per attempt")
    parser.add_argument("--output", type=Path, required=True, help="JSON lines file to write with the kept rows")
    parser.add_argument(
        "--attempts", type=int, default=16, help="attempts that every task must have (default: 16; 0: any number)"
    )
    parser.add_argument("--data", help="file with the tasks (default: $SWEBENCH_DATA, else the bundled tasks)")
    options = parser.parse_args(arguments)
    try:
        attempts = read_attempts(read_rows(options.rollouts))
        data = data_file(options.data)
        rows = read_rows(data)
        if nameless := [number for number, row in enumerate(rows, 1) if not isinstance(row.get("instance_id"), str)]:
            raise ValueError(f"{data}: row {nameless[0]} has no instance_id")
        if options.attempts:
            check_attempts(attempts, [row["instance_id"] for row in rows], options.attempts)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rates = {task: sum(successes) / len(successes) for task, successes in attempts.items()}
    kept = [row for row in rows if is_kept(rates.get(row["instance_id"], 0.0))]
    unknown = rates.keys() - {row["instance_id"] for row in rows}
    options.output.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    summary = {"tasks": len(rows), "attempted": len(rates), "kept": len(kept), "not in the data": len(unknown)}
    print(json.dumps(summary | {"output": str(options.output)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
