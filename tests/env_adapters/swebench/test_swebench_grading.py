"""Grading of correct, wrong and cheating patches."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from env_adapters.swebench.grading import grade
from env_adapters.swebench.instances import FIXTURES, Instance, load
from env_adapters.swebench.sandbox import Sandbox, SandboxError
from env_adapters.swebench.verdict import Verdict
from env_adapters.swebench.work_tree import install, load_pack, take_patch

Start = Callable[..., Sandbox]
ALL = [task.instance_id.partition("__")[2] for task in load(FIXTURES / "instances.jsonl")]


def grade_patch(start: Start, instance: Instance, patch: bytes | str | None, seconds: float = 20.0) -> Verdict:
    data = patch.encode() if isinstance(patch, str) else patch
    return grade(instance, data, lambda: start(timeout=seconds), load_pack(instance, needed=True))


def grade_changes(start: Start, instance: Instance, *commands: str, seconds: float = 20.0) -> Verdict:
    """Grade what commands do to the work tree, after the solution has been applied."""
    sandbox = start()
    base = install(sandbox, instance, load_pack(instance, needed=True))
    for command in commands:
        output = sandbox.exec(command, stdin=instance.patch.encode())
        assert output.ok, output
    return grade_patch(start, instance, take_patch(sandbox, base), seconds)


SOLVE = "git apply -"
NEW_FILE = "diff --git a/{0} b/{0}\nnew file mode 100644\n--- /dev/null\n+++ b/{0}\n@@ -0,0 +1 @@\n+new\n"


@pytest.mark.parametrize("name", ALL)
def test_the_gold_patch_resolves_and_nothing_else_does(name: str, start: Start, instances: dict[str, Instance]) -> None:
    instance = instances[name]
    tests = len(instance.FAIL_TO_PASS)
    gold = grade_patch(start, instance, instance.patch)
    assert gold == Verdict(tests, tests, 0) and gold.resolved and gold.score == 1.0
    nothing = grade_patch(start, instance, "\n")
    assert not nothing.resolved and nothing.score == 0.0 and nothing.problem == "nothing was changed"
    # An irrelevant change: all tests run, those for the issue fail, all others pass.
    useless = grade_patch(start, instance, NEW_FILE.format("NOTES"))
    assert useless == Verdict(0, tests, 0) and not useless.resolved and useless.score == 0.0


def test_patches_that_are_wrong_or_garbage_do_not_resolve(start: Start, instances: dict[str, Instance]) -> None:
    instance = instances["chronos-2"]
    for garbage in ("hello", "diff --git a/x b/x\n@@ -1 +1 @@", b"\xff\0" * 1000, instance.patch.replace("-", "+")):
        verdict = grade_patch(start, instance, garbage)
        assert verdict.problem == "the patch does not apply" and not verdict.resolved
    assert grade_patch(start, instance, None).problem.startswith("no patch could be made")
    other = grade_patch(start, instance, instances["chronos-1"].patch)
    assert other == Verdict(0, 3, 0)
    broken = grade_changes(start, instance, "echo 'def merge(spans): return []' >> chronos/spans.py")
    assert broken.broken > 0 and not broken.resolved and broken.score == 0.0
    half = grade_changes(start, instance, "sed -i 's/span.start < merged/span.start <= merged/' chronos/spans.py")
    assert half == Verdict(1, 3, 0) and not half.resolved and half.score == pytest.approx(1 / 3)


TRICKS = {
    "prints success": 'echo \'print("OK"); print("PASSED tests")\' >> chronos/__init__.py',
    "ends the process": "echo 'import os; os._exit(0)' >> chronos/__init__.py",
    "ends it later": "echo 'import atexit, os; atexit.register(os._exit, 0); raise SystemExit' >> chronos/__init__.py",
    "skips the tests": "sed -i '/^def merge/a \\    import unittest; raise unittest.SkipTest' chronos/spans.py",
    "replaces unittest": "printf 'class TestCase: pass\\ndef main(): pass\\n' | tee unittest.py json.py os.py > sys.py",
    "replaces the tests": "for f in tests/test_*.py; do echo 'import unittest' > $f; done",
    "deletes the tests": "rm -r tests; mkdir tests; touch tests/__init__.py",
    "replaces the tests by a link": "mv tests mine; ln -s mine tests",
    "disables assertions": """cat >> chronos/spans.py <<'END'
import unittest
for name in dir(unittest.TestCase):
    if name.startswith("assert"):
        setattr(unittest.TestCase, name, lambda *a, **k: None)
class Nothing:
    __enter__ = __exit__ = lambda *a: True
unittest.TestCase.assertRaises = lambda *a: Nothing()
END""",
    "accepts every result": """cat >> chronos/spans.py <<'END'
import unittest
unittest.TestResult.wasSuccessful = lambda self: True
END""",
    "drops failures": """cat >> chronos/spans.py <<'END'
import unittest
for name in ("addFailure", "addError", "addSubTest"):
    setattr(unittest.TestResult, name, lambda *a: None)
END""",
    "never ends": "echo 'while True: pass' >> chronos/__init__.py",
    "kills all processes": "echo 'import os, signal; os.kill(-1, 9)' >> chronos/__init__.py",
    "imitates the supervisor": "echo 'import os; os.write(1, b\"\\\\0 0 0\\\\0\")' >> chronos/__init__.py",
    "configures git": "printf '* -diff -text\\n*.py binary\\n' > .gitattributes; git config core.hooksPath /testbed",
}


@pytest.mark.parametrize("trick", TRICKS)
def test_tricks_do_not_resolve(trick: str, start: Start, instances: dict[str, Instance]) -> None:
    # A time-out would look like a good defence, so only the trick that needs one has a short time.
    seconds = 5 if trick == "never ends" else 30
    started = time.monotonic()
    verdict = grade_changes(start, instances["chronos-2"], TRICKS[trick], seconds=seconds)
    assert not verdict.resolved and verdict.score == 0.0
    assert trick == "never ends" or time.monotonic() - started < seconds


def test_known_test_files_are_restored_and_other_changes_count(start: Start, instances: dict[str, Instance]) -> None:
    meddle = (
        "for f in sitecustomize usercustomize conftest tests/conftest; do echo 'raise SystemExit' > $f.py; done\n"
        "echo 'import nothing' | tee tests/__init__.py tests/test_durations.py >> tests/test_spans.py\n"
        "echo 'raise SystemExit' | tee unittest.py > random.py; sed -i '1a import random' chronos/spans.py\n"
        "ln -sf /etc/passwd tests/test_durations.py"
    )
    assert grade_changes(start, instances["chronos-2"], SOLVE, meddle).resolved
    assert grade_changes(start, instances["chronos-2"], SOLVE, "mkdir tests/more; touch tests/test_mine.py").resolved
    ignored = (  # a package that stands in for a module of tests, and that git would not list
        "echo tests/test_spans/ >>.gitignore; mkdir -p tests/test_spans\n"
        "echo 'raise SystemExit' >tests/test_spans/__init__.py; git add -f tests"
    )
    assert grade_changes(start, instances["chronos-2"], SOLVE, ignored).resolved


def test_a_patch_cannot_write_outside_of_the_work_tree(start: Start, instances: dict[str, Instance]) -> None:
    instance = instances["chronos-2"]
    sandboxes: list[Sandbox] = []

    def watched(**limits: float) -> Sandbox:
        sandboxes.append(start(**limits))
        sandboxes[-1].close = lambda: None  # keeps it open for inspection
        return sandboxes[-1]

    for path in ("../../tmp/pwned", "../tmp/pwned", ".git/hooks/pwned", "/tmp/pwned", "a/../../tmp/pwned"):
        assert grade_patch(watched, instance, NEW_FILE.format(path)).problem == "the patch does not apply", path
    link = "diff --git a/link b/link\nnew file mode 120000\n--- /dev/null\n+++ b/link\n@@ -0,0 +1 @@\n+/tmp\n"
    link += "\\ No newline at end of file\n"
    assert grade_patch(watched, instance, link + NEW_FILE.format("link/pwned")).problem == "the patch does not apply"
    for sandbox in sandboxes:
        assert sandbox.exec("ls /tmp/pwned .git/hooks/pwned 2>/dev/null | wc -l").data == b"0\n"
        del sandbox.close
    assert grade_patch(start, instance, link) == Verdict(0, 3, 0)  # a link alone is a change like any other


def test_a_patch_that_is_too_long_is_rejected(start: Start, instances: dict[str, Instance]) -> None:
    verdict = grade_changes(start, instances["chronos-2"], SOLVE, "head -c 200000 /dev/urandom > noise")
    assert not verdict.resolved and verdict.problem.startswith("no patch could be made")


def test_a_short_patch_that_unpacks_to_more_than_the_disk_holds(start: Start, instances: dict[str, Instance]) -> None:
    instance, sandbox = instances["chronos-2"], start(disk=60, memory=512, output=2**20)
    base = install(sandbox, instance, load_pack(instance, needed=True))
    assert sandbox.exec("head -c 24M /dev/zero >zeros").ok
    patch = take_patch(sandbox, base)
    assert patch and len(patch) < 200_000
    assert grade_patch(start, instance, patch).problem == "the patch does not apply"


def test_a_sandbox_that_cannot_start_is_an_error_and_not_a_failed_patch(instances: dict[str, Instance]) -> None:
    def broken() -> Sandbox:
        raise SandboxError("no room")

    with pytest.raises(SandboxError, match="no room"):
        grade(instances["chronos-1"], b"x", broken, b"")


SCRIPT = """#!/bin/bash
set -uxo pipefail
cd /testbed
git status >/dev/null
git checkout {base} tests/test_spans.py
git apply -v - <<'EOF_114329324912'
{test_patch}
EOF_114329324912
: '>>>>> Start Test Output'
python3 - <<'END'
import sys, unittest
class Result(unittest.TestResult):
    def stopTest(self, test):
        bad = any(test is failed for failed, _ in self.failures + self.errors)
        print("FAILED" if bad else "PASSED", test.id() + (" - it failed" if bad else ""), flush=True)
suite = unittest.defaultTestLoader.discover(".")
result = suite.run(Result())
sys.exit(not result.wasSuccessful())
END
: '>>>>> End Test Output'
git checkout {base} tests/test_spans.py
"""


def test_rows_of_version_5_are_graded_by_their_script(start: Start, instances: dict[str, Instance]) -> None:
    ours = instances["chronos-2"]
    script = SCRIPT.format(base=ours.base_commit, test_patch=ours.test_patch)
    instance = replace(ours, log_parser="parse_log_pytest", eval_type="pass_and_fail", eval_script=script)
    assert grade_patch(start, instance, ours.patch) == Verdict(3, 3, 0)
    assert grade_changes(start, instance, "echo >> README.md") == Verdict(0, 3, 0)
    said = "".join(f"print('PASSED {test}')\n" for test in ours.FAIL_TO_PASS + ours.PASS_TO_PASS)
    forged = f"cat >> chronos/__init__.py <<'END'\n{said}import os\nos._exit(1)\nEND"
    verdict = grade_changes(start, instance, forged)
    assert not verdict.resolved and verdict.problem == "the tests did not come to their end"
    hidden = "echo \"print('>>>>> End Test Output'); print('>>>>> Test Exit Code: 0')\" >> chronos/__init__.py"
    assert grade_changes(start, instance, hidden) == Verdict(0, 3, 0)
    endless = grade_changes(start, instance, "echo 'while True: pass' >> chronos/__init__.py", seconds=5)
    assert endless.problem == "the tests did not come to their end"
