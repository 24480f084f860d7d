"""Grades a patch by running the task's tests on it in a fresh sandbox.

Owns the order of the steps: install the base commit, apply the patch, take back what it may not change, apply the test
patch, run the tests. The patch is untrusted and is applied by git inside the sandbox, which also rejects paths outside
of the work tree. Whatever it holds, what runs are the task's tests and their configuration, and the patched product.
"""

from collections.abc import Callable, Mapping

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
        statuses = _run(instance, patch, start, pack)
        if isinstance(statuses, str):
            return reject(instance, statuses)
        verdict = judge(instance, statuses)
        if verdict.score > 0 and _forged(instance, patch, start, pack):
            return reject(instance, "tests pass that cannot pass")
        return verdict
    except SandboxLost:  # broken by the tests, for which the patch is responsible
        return reject(instance, "the tests broke down")


def _forged(instance: Instance, patch: bytes, start: Callable[[], Sandbox], pack: bytes | None) -> bool:
    """Return whether twins of the tests pass too, in a sandbox of their own, so that no run leaves a trace for another.

    Only twins of FAIL_TO_PASS tell something: the agent has never seen these tests, and without them nothing is solved.
    """
    spoiled: set[str] = set()
    statuses = _run(instance, patch, start, pack, spoiled)
    return not isinstance(statuses, str) and any(passes(test, instance, statuses) for test in spoiled)


def _run(
    instance: Instance, patch: bytes, start: Callable[[], Sandbox], pack: bytes | None, twins: set[str] | None = None
) -> Mapping[str, str] | str:
    """Return the statuses of the tests, or why there are none.

    Args:
        instance: The task.
        patch: The patch.
        start: Starts a fresh sandbox.
        pack: From ``work_tree.load_pack``.
        twins: If given, twins of FAIL_TO_PASS are run, and the names of those that were made are added to it.
    """
    sandbox = start()
    try:
        base = install(sandbox, instance, pack, keep_history=True)
        problem = _apply(sandbox, instance, patch, base)
        if problem:
            return problem
        # Evaluation scripts apply the test patch themselves.
        own = instance.log_parser == UNITTEST
        test_patch = instance.test_patch.encode()
        replaced: dict[str, str] = {}
        if own or twins is not None:
            if not sandbox.exec(f"{_APPLY} -", stdin=test_patch).ok:
                return "the tests do not fit into the changed work tree"
            if twins is not None:
                replaced = _spoil(sandbox, instance, twins)
            if not own and not sandbox.exec(f"{_APPLY} -R -", stdin=test_patch).ok:
                return "the tests do not fit into the changed work tree"
        statuses = run_tests(sandbox, instance, replaced)
        return "the tests did not come to their end" if statuses is None else statuses
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


def _spoil(sandbox: Sandbox, instance: Instance, twins: set[str]) -> dict[str, str]:
    """Return the texts of the test files with twins, and add the names of these tests to ``twins``."""
    replaced: dict[str, str] = {}
    for path in test_files(instance):
        data = sandbox.read(path) if path.endswith(".py") else None
        if data is None:
            continue
        text, names = spoil(data.decode(errors="surrogateescape"), instance.FAIL_TO_PASS)
        if names:
            replaced[path] = text
            twins |= names
    return replaced
