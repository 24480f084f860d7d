"""Running a task's tests in a sandbox.

Owns the two ways to do it: by our own runner, for tests of unittest, and by the script that SWE-bench's rows bring.
Both mark what they report with a word that the code under test is not told.
"""

import json
import re
import secrets
from functools import cache
from pathlib import Path

from env_adapters.swebench.instances import Instance
from env_adapters.swebench.official import complete, log_parser
from env_adapters.swebench.sandbox import WORK_TREE, Sandbox
from env_adapters.swebench.verdict import ERROR, FAILED

UNITTEST = "unittest"
"""Value of a row's ``log_parser``: its tests are names for unittest and are run by our runner."""

_START = ">>>>> Start Test Output"
_END = ">>>>> End Test Output"


def with_tests(instance: Instance) -> Instance:
    """Return a task whose tests can be run, made complete if its row is an older one.

    Raises:
        ValueError: If they cannot.
    """
    instance = complete(instance)
    if instance.log_parser != UNITTEST:
        marked_script(instance.eval_script, "")
        log_parser(instance.log_parser)
    return instance


def run_tests(sandbox: Sandbox, instance: Instance) -> dict[str, str] | None:
    """Return the status of each test that was run, by name; None if the tests did not come to their end.

    Args:
        sandbox: With the patch, and for our own runner the test patch, applied.
        instance: The task, from ``with_tests``.

    Raises:
        SandboxLost: If the sandbox broke down.
    """
    mark = secrets.token_hex(16)
    if instance.log_parser == UNITTEST:
        names = [*instance.FAIL_TO_PASS, *instance.PASS_TO_PASS]
        program = f"{_runner()}\nmain({mark!r}, {names!r}, {WORK_TREE!r})\n"
        # Elsewhere, because Python takes the modules of the current folder first.
        output = sandbox.exec("cd / && exec python3 -s -S -B -", stdin=program.encode())
        return read_report(output.data.decode(errors="replace"), mark)
    output = sandbox.exec(marked_script(instance.eval_script, mark))
    if output.stopped:
        return None
    return read_log(output.data.decode(errors="replace"), mark, instance)


def read_report(text: str, mark: str) -> dict[str, str] | None:
    """Return what our runner reports; None if it did not come to its end."""
    parts = text.split(mark)
    if len(parts) != 3:
        return None
    try:
        statuses = json.loads(parts[1])
    except (ValueError, RecursionError):
        return None
    return statuses if isinstance(statuses, dict) else None


def marked_script(script: str, mark: str) -> str:
    """Return an evaluation script that marks its test output and the status of the test command.

    Raises:
        ValueError: If the script does not mark its test output in SWE-bench's way.
    """
    lines = script.split("\n")
    starts = [index for index, line in enumerate(lines) if _START in line]
    ends = [index for index, line in enumerate(lines) if _END in line]
    if len(starts) != 1 or len(ends) != 1 or starts > ends:
        raise ValueError(f"eval_script must have one line with {_START!r} and, below it, one with {_END!r}")
    lines[starts[0]] = f"echo {mark}"
    # Of the test command only: what follows it resets files and has a status of its own.
    lines[ends[0]] = f"status=$?; echo; echo {mark} $status"
    return "\n".join(lines)


def read_log(text: str, mark: str, instance: Instance) -> dict[str, str] | None:
    """Return what a marked script's output says about the tests.

    None, if it did not come to its end, cannot be read, or tells of no failure although the test command failed: then
    the log does not tell what happened.
    """
    # Traced commands show the mark too, but behind other text.
    found = re.search(rf"^{mark}\n(.*)^{mark} (\d+)$", text, re.MULTILINE | re.DOTALL)
    if not found:
        return None
    parse = log_parser(instance.log_parser)
    try:
        statuses = parse(found[1], instance)
    except Exception:  # the log is the patch's work as well, and parsers are made for honest ones
        return None
    if found[2] != "0" and not any(status in (FAILED, ERROR) for status in statuses.values()):
        return None
    return statuses


@cache
def _runner() -> str:
    return (Path(__file__).parent / "runner.py").read_text()
