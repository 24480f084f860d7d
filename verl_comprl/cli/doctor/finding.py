"""Result of one check, and the exceptions by which a check says that something is wrong or was not checked."""

from dataclasses import dataclass
from enum import StrEnum

SEE_TRACEBACK = "none is known; COMPRL_VERBOSE=1 comprl doctor with the same arguments prints the traceback"
"""Remedy of what a check has not foreseen."""


class Status(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    SKIPPED = "skipped"
    """Not checked: not known yet, or not used."""
    WARNING = "warning"
    """Something works less well, or a part that not every run needs is missing."""
    FAILED = "failed"


@dataclass(frozen=True)
class Finding:
    """What a check found."""

    check: str
    status: Status
    message: str
    remedy: str = ""
    """Command or setting that fixes it; "" if nothing needs fixing."""


class Skipped(Exception):
    """There is nothing to check, or it cannot be checked here and now; says why."""


class Problem(Exception):
    """Something is wrong."""

    def __init__(self, message: str, remedy: str, *, warning: bool = False) -> None:
        """Say what is wrong and what mends it; ``warning`` if runs can do without it."""
        super().__init__(message)
        self.remedy = remedy
        self.status = Status.WARNING if warning else Status.FAILED
