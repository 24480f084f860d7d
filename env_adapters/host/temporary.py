"""Folder for temporary files of environments, which leave them behind where their process is killed."""

import os
import tempfile

TEMPORARY = "ENV_ADAPTERS_TMPDIR"
"""Environment variable with the folder, which whoever sets it removes: a host that is killed cannot. One that is not on
this machine is passed over."""


def temporary_place() -> str | None:
    """Return the folder; None where there is none."""
    place = os.environ.get(TEMPORARY, "")
    return place if os.path.isdir(place) else None


def use_temporary_place() -> None:
    """Let this process make its temporary files there: environments in threads make theirs in the process."""
    if place := temporary_place():
        tempfile.tempdir = place
