"""Scripted SWE-bench player that applies each task's gold patch.

Owns the messages that solve a task, which give an upper bound and show the answer format. Run as a command it plays all
tasks, to check an installation.

Usage: ``python -m env_adapters.swebench.expert [--data FILE] [--backend NAME]``.
"""

import argparse
import json
import sys
import time

from env_adapters.dataset import SPLITS, split_seeds
from env_adapters.swebench.instances import HELD_OUT, Instance, tasks_of

_END = "END_OF_PATCH"


def solve(instance: Instance) -> list[str]:
    """Return messages that solve a task: look at the repository, apply the patch, check the changes, submit."""
    apply = f"git apply - <<'{_END}'\n{instance.patch.rstrip(chr(10))}\n{_END}"
    return [
        _call("I look at the state of the repository first.", "bash", command="git status --short; git log --oneline"),
        _call("I know how to repair it.", "bash", command=apply),
        _call("I check what has changed.", "bash", command="git diff --stat"),
        _call("The issue is solved.", "submit"),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Play all tasks and print the result of each; returns 0 if all were solved."""
    from env_adapters.swebench.environment import SWEBenchEnvironment

    parser = argparse.ArgumentParser(prog="python -m env_adapters.swebench.expert", description=__doc__)
    parser.add_argument("--data", help="file with the tasks (default: $SWEBENCH_DATA, else the bundled tasks)")
    parser.add_argument("--backend", default="bubblewrap", help="kind of sandbox (default bubblewrap)")
    parser.add_argument("--test-timeout", type=float, default=600.0, help="seconds for the tests (default 600)")
    options = parser.parse_args(arguments)
    environment = SWEBenchEnvironment(data=options.data, backend=options.backend, test_timeout=options.test_timeout)
    played = solved = 0
    for split in SPLITS:
        instances = tasks_of(split, options.data, HELD_OUT)
        for seed, instance in zip(split_seeds(split, len(instances)), instances, strict=True):
            begin = time.perf_counter()
            environment.reset(seed=seed)
            observation, _, _, _, info = [environment.step(message) for message in solve(instance)][-1]
            played, solved = played + 1, solved + info["success"]
            seconds = round(time.perf_counter() - begin, 2)
            print(json.dumps({"task": info["task_id"], "split": split, "seconds": seconds, "end": observation}))
    environment.close()
    print(json.dumps({"tasks": played, "solved": solved}))
    return int(solved < played)


def _call(thought: str, name: str, **arguments: str) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<think>{thought}</think>\n<tool_call>\n{call}\n</tool_call>"


if __name__ == "__main__":
    sys.exit(main())
