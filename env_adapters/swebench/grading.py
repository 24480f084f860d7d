"""Grades a patch by running the task's tests on it in a fresh sandbox.

Owns the order of the steps: install the base commit, apply the patch, restore known test and configuration files, apply
the test patch, run the tests. The patch is untrusted and is applied by git inside the sandbox, which also rejects paths
outside of the work tree.
"""

import re
import shlex
from collections.abc import Callable

from env_adapters.swebench.evaluation import UNITTEST, run_tests
from env_adapters.swebench.instances import Instance
from env_adapters.swebench.sandbox import Sandbox, SandboxLost
from env_adapters.swebench.verdict import Verdict, judge, reject
from env_adapters.swebench.work_tree import install

_DOTTED = re.compile(r"\w+(\.\w+)+")
_NAMES = re.compile(r"^diff --git a/(\S+) b/(\S+)$", re.MULTILINE)
# Files that configure test runs, or that Python executes automatically.
_STEERING = ("conftest.py", "pytest.ini", "tox.ini", "sitecustomize.py", "usercustomize.py", "*.pth")
_APPLY = "git apply --whitespace=nowarn -"
# Reverts the changes to some paths that ``git add -A`` finds: modifications, additions, deletions, links.
_RESTORE = """set -o pipefail
git add -A || exit
git diff --cached --quiet {base} -- {paths} && exit
git diff --cached --binary --no-renames -R {base} -- {paths} | git apply --index -
"""


def grade(instance: Instance, patch: bytes | None, start: Callable[[], Sandbox], pack: bytes | None) -> Verdict:
    """Return the verdict on a patch.

    Args:
        instance: The task, from ``evaluation.with_tests``.
        patch: The patch, which may be empty or malformed; None if none could be made.
        start: Starts a fresh sandbox whose time limit is that of the tests.
        pack: From ``work_tree.load_pack``.

    Raises:
        SandboxError: If the sandbox cannot be started or the repository cannot be installed in it.
    """
    if patch is None:
        return reject(instance, "no patch could be made of the work tree, or it is too long")
    if not patch.strip():
        return reject(instance, "nothing was changed")
    sandbox = start()
    try:
        base = install(sandbox, instance, pack, keep_history=True)
        return _grade(sandbox, instance, patch, base)
    except SandboxLost:  # broken by the tests, for which the patch is responsible
        return reject(instance, "the tests broke down")
    finally:
        sandbox.close()


def _grade(sandbox: Sandbox, instance: Instance, patch: bytes, base: str) -> Verdict:
    # The order matters: the restore must undo what the patch did to tests, and the test patch is a diff against the
    # original tests, so it applies only after the restore.
    if not sandbox.exec(_APPLY, stdin=patch).ok:
        return reject(instance, "the patch does not apply")
    if not sandbox.exec(_RESTORE.format(base=base, paths=_protected(instance))).ok:
        return reject(instance, "the tests cannot be put back")
    # Evaluation scripts apply the test patch themselves.
    own = instance.log_parser == UNITTEST
    if own and not sandbox.exec(_APPLY, stdin=instance.test_patch.encode()).ok:
        return reject(instance, "the tests do not fit into the changed work tree")
    statuses = run_tests(sandbox, instance)
    if statuses is None:
        return reject(instance, "the tests did not come to their end")
    return judge(instance, statuses)


def _protected(instance: Instance) -> str:
    """Return the paths at which changes by the patch are reverted, quoted for git's command line."""
    files = {name for names in _NAMES.findall(instance.test_patch) for name in names}
    files.update(name for test in instance.FAIL_TO_PASS + instance.PASS_TO_PASS for name in _files_of(test))
    paths = [f":(literal){name}" for name in sorted(files)] + [f":(glob)**/{name}" for name in _STEERING]
    return " ".join(map(shlex.quote, paths))


def _files_of(test: str) -> list[str]:
    """Return the files that a test's name, such as ``a/b.py::test`` or ``tests.test_b.Case.test``, may refer to."""
    path, colons, _ = test.partition("::")
    if colons:
        return [path]
    if not _DOTTED.fullmatch(test):
        return []
    parts = test.split(".")
    # Test modules and test packages, but not the package that contains them.
    modules = ["/".join(parts[: index + 1]) for index, part in enumerate(parts[:-1]) if "test" in part.lower()]
    return [f"{module}{end}" for module in modules for end in (".py", "/__init__.py")]
