"""Runs the tests of a SWE-bench task in a sandbox.

Owns the two ways to do so: our own runner for unittest tests, and the evaluation script in SWE-bench's rows. Both
delimit their report with a random mark that is not given to the tested code.
"""

import base64
import json
import re
import secrets
import shlex
from collections.abc import Mapping
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
    """Return the task with all fields needed to run its tests, completed if its row is in the older format.

    Raises:
        ValueError: If its tests cannot be run.
    """
    instance = complete(instance)
    if instance.log_parser != UNITTEST:
        marked_script(instance.eval_script, "")
        log_parser(instance.log_parser)
    return instance


def run_tests(sandbox: Sandbox, instance: Instance, texts: Mapping[str, str] | None = None) -> dict[str, str] | None:
    """Return the status of each test that was run, by name; None if the tests did not finish.

    Args:
        sandbox: A sandbox with the patch applied, and for our own runner the test patch too.
        instance: The task, from ``with_tests``.
        texts: Texts to which files of the tests are set just before the tests run, by path.

    Raises:
        SandboxLost: If the sandbox stops answering.
    """
    mark = secrets.token_hex(16)
    if instance.log_parser == UNITTEST:
        names = [*instance.FAIL_TO_PASS, *instance.PASS_TO_PASS]
        program = f"{_runner()}\nmain({mark!r}, {names!r}, {WORK_TREE!r})\n"
        # Started in /, because Python would import modules of the current folder before its own.
        output = sandbox.exec(f"{_write(texts)}cd / && exec python3 -s -S -B -", stdin=program.encode())
        return read_report(output.data.decode(errors="replace"), mark)
    output = sandbox.exec(marked_script(instance.eval_script, mark, _write(texts)))
    if output.stopped:
        return None
    return read_log(output.data.decode(errors="replace"), mark, instance)


def read_report(text: str, mark: str) -> dict[str, str] | None:
    """Return the statuses in our runner's report; None if the report is incomplete or malformed."""
    parts = text.split(mark)
    if len(parts) != 3:
        return None
    try:
        statuses = json.loads(parts[1])
    except (ValueError, RecursionError):
        return None
    return statuses if isinstance(statuses, dict) else None


def _write(files: Mapping[str, str] | None) -> str:
    """Return commands that write files in the work tree."""
    commands = []
    for path, text in (files or {}).items():
        data = base64.encodebytes(text.encode(errors="surrogateescape")).decode()
        commands.append(f"base64 -d >{shlex.quote(f'{WORK_TREE}/{path}')} <<'END'\n{data}END\n")
    return "".join(commands)


def marked_script(script: str, mark: str, before: str = "") -> str:
    """Return an evaluation script that marks its test output and the status of the test command.

    Args:
        script: The script.
        mark: Text of the marks.
        before: Commands to run just before the tests.

    Raises:
        ValueError: If the script does not mark its test output as SWE-bench's scripts do.
    """
    lines = script.split("\n")
    starts = [index for index, line in enumerate(lines) if _START in line]
    ends = [index for index, line in enumerate(lines) if _END in line]
    if len(starts) != 1 or len(ends) != 1 or starts > ends:
        raise ValueError(f"eval_script must have one line with {_START!r} and, below it, one with {_END!r}")
    lines[starts[0]] = f"{before}echo {mark}"
    # The status of the test command; the commands after it reset files and have statuses of their own.
    lines[ends[0]] = f"status=$?; echo; echo {mark} $status"
    return "\n".join(lines)


def read_log(text: str, mark: str, instance: Instance) -> dict[str, str] | None:
    """Return the statuses of the tests in a marked script's output.

    None if the output is incomplete, cannot be parsed, or reports no failure although the test command failed.
    """
    # Commands traced by ``set -x`` contain the mark too, but not at the start of a line.
    found = re.search(rf"^{mark}\n(.*)^{mark} (\d+)$", text, re.MULTILINE | re.DOTALL)
    if not found:
        return None
    parse = log_parser(instance.log_parser)
    try:
        statuses = parse(found[1], instance)
    except Exception:  # the patch influences the log, and the parsers do not expect hostile input
        return None
    if found[2] != "0" and not any(status in (FAILED, ERROR) for status in statuses.values()):
        return None
    return statuses


@cache
def _runner() -> str:
    return (Path(__file__).parent / "runner.py").read_text()
