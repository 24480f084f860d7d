"""Choosing the tasks that are worth training on, by how often a model solves them already.

Owns the paper's filter: of the tasks that a base model was given 16 times, those are kept that it solved at least once
and in less than 80 % of the attempts. On SWE-bench Verified the paper kept 124.

Usage: ``python -m env_adapters.swebench.select --rollouts FILE --output FILE``. The first file has a JSON object with
``task_id`` and ``success`` per line and attempt; the second gets the rows of the tasks that are kept, to be given as
the option ``data``.
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


def success_rates(rollouts: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the share of successful attempts of each task, by ``instance_id``.

    Args:
        rollouts: One attempt each: ``task_id``, as the environment reports it or SWE-bench's, and ``success``.

    Raises:
        ValueError: If a field is missing or of another type.
    """
    attempts: dict[str, list[bool]] = defaultdict(list)
    for number, rollout in enumerate(rollouts, 1):
        task_id, success = rollout.get("task_id"), rollout.get("success")
        if not isinstance(task_id, str) or not isinstance(success, bool | int | float) or success not in (0, 1):
            raise ValueError(f"rollout {number} needs 'task_id' (text) and 'success' (0 or 1), got {dict(rollout)!r}")
        attempts[task_id.removeprefix("swebench/")].append(bool(success))
    return {task: sum(successes) / len(successes) for task, successes in attempts.items()}


def is_kept(rate: float) -> bool:
    """Return whether a task with this share of successes is worth training on."""
    return 0 < rate < HIGHEST_RATE


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m env_adapters.swebench.select", description=__doc__)
    parser.add_argument("--rollouts", type=Path, required=True, help="JSON lines with task_id and success per attempt")
    parser.add_argument("--output", type=Path, required=True, help="JSON lines to write: the rows that are kept")
    parser.add_argument("--data", help="file with the tasks (default: $SWEBENCH_DATA, else our own tasks)")
    options = parser.parse_args(arguments)
    try:
        rates = success_rates(read_rows(options.rollouts))
        rows = read_rows(data_file(options.data))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    kept = [row for row in rows if is_kept(rates.get(row["instance_id"], 0.0))]
    unknown = rates.keys() - {row["instance_id"] for row in rows}
    options.output.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    summary = {"tasks": len(rows), "attempted": len(rates), "kept": len(kept), "not in the data": len(unknown)}
    print(json.dumps(summary | {"output": str(options.output)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
