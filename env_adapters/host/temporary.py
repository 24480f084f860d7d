"""Folder for temporary files of environments, which leave them behind where their process is killed."""

import os
import tempfile

TEMPORARY = "ENV_ADAPTERS_TMPDIR"
"""Environment variable with the folder, which whoever sets it removes: a host that is killed cannot. One that is not on
this machine is passed over."""

PREFIX = "comprl-env-"
"""Of the names of such folders."""

_LONGEST = 107 - len("/pymp-12345678/listener-12345678")
"""Bytes of a folder for temporary files: the names of sockets that Python makes there have at most 107."""

LONGEST = _LONGEST - len(f"/{PREFIX}12345678")
"""Bytes of a folder in which one can be made."""


def temporary_place() -> str | None:
    """Return the folder; None where there is none."""
    place = os.environ.get(TEMPORARY, "")
    return place if os.path.isdir(place) else None


def make_temporary_folder() -> str | None:
    """Make a folder in that folder, or in the system's; None where the names of sockets in it would get too long."""
    place = temporary_place() or tempfile.gettempdir()
    return tempfile.mkdtemp(prefix=PREFIX, dir=place) if len(os.fsencode(place)) <= LONGEST else None


def use_temporary_place() -> None:
    """Let this process make its temporary files there: environments in threads make theirs in the process."""
    if (place := temporary_place()) and len(os.fsencode(place)) <= _LONGEST:
        tempfile.tempdir = place
