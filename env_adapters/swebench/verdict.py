"""Combines the results of single tests into the verdict on a patch.

Owns SWE-bench's rules: a task is resolved if all tests of FAIL_TO_PASS and of PASS_TO_PASS pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from env_adapters.swebench.instances import Instance

PASSED, FAILED, SKIPPED, ERROR, XFAIL = "PASSED", "FAILED", "SKIPPED", "ERROR", "XFAIL"
STATUSES = (PASSED, FAILED, SKIPPED, ERROR, XFAIL)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of grading a patch.

    Attributes:
        fixed: Number of tests of FAIL_TO_PASS that pass.
        to_fix: Number of tests of FAIL_TO_PASS.
        broken: Number of tests of PASS_TO_PASS that do not pass.
        problem: Reason why there are no test results; empty otherwise.
    """

    fixed: int
    to_fix: int
    broken: int
    problem: str = ""

    @property
    def resolved(self) -> bool:
        """Whether the task is solved."""
        return not self.problem and self.fixed == self.to_fix and not self.broken

    @property
    def score(self) -> float:
        """Share of FAIL_TO_PASS that passes; 0 if a test of PASS_TO_PASS does not."""
        if self.problem or self.broken:
            return 0.0
        return self.fixed / self.to_fix if self.to_fix else 1.0


def judge(instance: Instance, statuses: Mapping[str, str]) -> Verdict:
    """Return the verdict on the results of the tests, by name."""
    fixed = [passes(test, instance, statuses) for test in instance.FAIL_TO_PASS]
    kept = [passes(test, instance, statuses, SKIPPED) for test in instance.PASS_TO_PASS]
    return Verdict(sum(fixed), len(fixed), kept.count(False))


def passes(test: str, instance: Instance, statuses: Mapping[str, str], *others: str) -> bool:
    """Return whether a test passes; ``others`` are statuses that count too."""
    if instance.eval_type == "fail_only":  # the log names failed tests only
        return statuses.get(test) != FAILED
    return _find(test, statuses) in (PASSED, XFAIL, *others)


def reject(instance: Instance, problem: str) -> Verdict:
    """Return the verdict on a patch for which there are no test results."""
    return Verdict(0, len(instance.FAIL_TO_PASS), 0, problem)


def _find(test: str, statuses: Mapping[str, str]) -> str | None:
    """Return a test's status.

    SWE-bench's data has names that are cut off within their parameters. Such a name matches as a prefix, if all tests
    with that prefix agree.
    """
    if test in statuses or test.count("[") <= test.count("]"):
        return statuses.get(test)
    found = [status for name, status in statuses.items() if name.startswith(test)]
    agree = len({status in (PASSED, XFAIL) for status in found}) == 1
    return found[0] if agree else None
