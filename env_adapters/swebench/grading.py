"""Grades a patch by running the task's tests on it in a fresh sandbox.

Owns the order of the steps: install the base commit, apply the patch, take back what it may not change, apply the test
patch, run the tests. The patch is untrusted and is applied by git inside the sandbox, which also rejects paths outside
of the work tree. Whatever it holds, what runs are the task's tests and their configuration, and the patched product.

The tested code can make any test pass, so a patch is also run with twins of the tests, which correct code fails. The
kinds of runs execute the same commands and differ in the text of the tests alone: neither times of files nor numbers of
processes tell them apart. Their order is random, because the time at which a patch was made can be part of the patch.
"""

import secrets
from collections.abc import Callable, Mapping
from enum import Enum, auto

from env_adapters.swebench.evaluation import UNITTEST, run_tests
from env_adapters.swebench.instances import Instance
from env_adapters.swebench.protection import protected, test_files
from env_adapters.swebench.sandbox import Sandbox, SandboxLost
from env_adapters.swebench.twins import spoil
from env_adapters.swebench.verdict import Verdict, judge, passes, reject
from env_adapters.swebench.work_tree import install

_APPLY = "git apply --whitespace=nowarn"
# The paths come from the index, to which the patch alone is applied: files that git would ignore are among them.
_CHANGED = "git diff --cached --name-only --no-renames -z {base} --"
_EXISTING = "git ls-tree -r --name-only -z {base}"
_RESTORE = "git --literal-pathspecs reset -q {base} --pathspec-from-file=- --pathspec-file-nul"
_WRITE = f"""set -o pipefail
git diff --cached --quiet {{base}} -- && exit
git diff --cached --binary --no-color --no-ext-diff --no-textconv --no-renames {{base}} -- | {_APPLY} -
"""


class Run(Enum):
    """Kinds of runs: the tests themselves, or twins with one or all of their assertions spoiled."""

    TESTS = auto()
    ONE_SPOILED = auto()
    ALL_SPOILED = auto()


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
    try:
        return _judge_all(instance, patch, start, pack)
    except SandboxLost:  # broken by the tests, for which the patch is responsible
        return reject(instance, "the tests broke down")


def _judge_all(instance: Instance, patch: bytes, start: Callable[[], Sandbox], pack: bytes | None) -> Verdict:
    """Run the tests and their twins, each in a sandbox of its own, so that no run leaves a trace for another."""
    verdict: Verdict | None = None
    fixed = set(instance.FAIL_TO_PASS)
    passing_twins: set[str] = set()
    for run in _order():
        statuses, spoiled = _run(instance, patch, start, pack, run)
        passing = set() if isinstance(statuses, str) else _passing(instance, statuses)
        if run is not Run.TESTS:
            passing_twins |= passing & spoiled
            continue
        fixed &= passing
        verdict = verdict or (reject(instance, statuses) if isinstance(statuses, str) else judge(instance, statuses))
        if verdict.score == 0:  # the other runs can only lower it
            return verdict
    assert verdict is not None
    # The twin of a test that fails may pass: it says the opposite.
    if passing_twins & fixed:
        return reject(instance, "tests pass that cannot pass")
    if len(fixed) < verdict.fixed:
        return reject(instance, "tests pass at one time and fail at another")
    return verdict


def _order() -> list[Run]:
    """Return the runs in a random order."""
    runs = [Run.TESTS, Run.TESTS, Run.ONE_SPOILED, Run.ALL_SPOILED]
    secrets.SystemRandom().shuffle(runs)
    return runs


def _passing(instance: Instance, statuses: Mapping[str, str]) -> set[str]:
    return {test for test in instance.FAIL_TO_PASS if passes(test, instance, statuses)}


def _run(
    instance: Instance, patch: bytes, start: Callable[[], Sandbox], pack: bytes | None, run: Run
) -> tuple[Mapping[str, str] | str, set[str]]:
    """Return the statuses of the tests, or why there are none, and the names of the tests that have twins.

    Args:
        instance: The task.
        patch: The patch.
        start: Starts a fresh sandbox.
        pack: From ``work_tree.load_pack``.
        run: Whether the tests are run, or their twins.
    """
    sandbox = start()
    try:
        base = install(sandbox, instance, pack, keep_history=True)
        problem = _apply(sandbox, instance, patch, base)
        if problem:
            return problem, set()
        test_patch = instance.test_patch.encode()
        if not sandbox.exec(f"{_APPLY} -", stdin=test_patch).ok:
            return "the tests do not fit into the changed work tree", set()
        texts, spoiled = _texts(sandbox, instance, run)
        # Evaluation scripts apply the test patch themselves.
        if instance.log_parser != UNITTEST and not sandbox.exec(f"{_APPLY} -R -", stdin=test_patch).ok:
            return "the tests do not fit into the changed work tree", set()
        statuses = run_tests(sandbox, instance, texts)
        return "the tests did not come to their end" if statuses is None else statuses, spoiled
    finally:
        sandbox.close()


def _apply(sandbox: Sandbox, instance: Instance, patch: bytes, base: str) -> str:
    """Apply what the patch may change and return an empty text, or the reason why that is impossible."""
    if not sandbox.exec(f"{_APPLY} --cached -", stdin=patch).ok:
        return "the patch does not apply"
    changed, existing = (sandbox.exec(command.format(base=base)) for command in (_CHANGED, _EXISTING))
    if not (changed.ok and existing.ok):
        return "the patch does not apply"
    paths = protected(_paths(changed.data), instance, _paths(existing.data))
    listed = "\0".join(paths).encode(errors="surrogateescape")
    if paths and not sandbox.exec(_RESTORE.format(base=base), stdin=listed).ok:
        return "the tests cannot be put back"
    return "" if sandbox.exec(_WRITE.format(base=base)).ok else "the patch does not apply"


def _paths(data: bytes) -> list[str]:
    return data.decode(errors="surrogateescape").removesuffix("\0").split("\0") if data else []


def _texts(sandbox: Sandbox, instance: Instance, run: Run) -> tuple[dict[str, str], set[str]]:
    """Return the texts of the files whose tests have twins, as the run wants them, and the names of these tests.

    Only twins of FAIL_TO_PASS tell something: the agent has never seen these tests, and without them nothing is solved.
    """
    texts: dict[str, str] = {}
    names: set[str] = set()
    for path in test_files(instance):
        data = sandbox.read(path) if path.endswith(".py") else None
        if data is None:
            continue
        text = data.decode(errors="surrogateescape")
        spoiled, found = spoil(text, instance.FAIL_TO_PASS, every=run is Run.ALL_SPOILED)
        if found:
            texts[path] = text if run is Run.TESTS else spoiled
            names |= found
    return texts, names
