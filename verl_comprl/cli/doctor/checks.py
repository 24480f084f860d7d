"""All checks, in their order, and how they are run."""

import io
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from importlib import import_module

from verl_comprl.cli.doctor.finding import Finding, Problem, Skipped, Status
from verl_comprl.cli.doctor.setup import Setup
from verl_comprl.compat import IncompatibleVerlError
from verl_comprl.display.quiet import is_verbose
from verl_comprl.requirements import describe_missing, install_command

Check = Callable[[Setup], str]
"""Returns what is right, or raises what is wrong, a ``Problem`` with a remedy or anything, or ``Skipped``."""


def _in(module: str, function: str) -> Check:
    """Return a check that imports its module when it runs: a library that is missing stops no other."""

    def check(setup: Setup) -> str:
        return getattr(import_module(f"{__package__}.{module}"), function)(setup)

    return check


CHECKS: dict[str, Check] = {
    "versions": _in("installation", "check_versions"),
    # Before anything else imports what it registers with, since a registration that fails does so once.
    "plugin": _in("installation", "check_plugin"),
    "verl": _in("installation", "check_verl"),
    "inference": _in("installation", "check_inference"),
    "device": _in("machine", "check_device"),
    "flash-attn": _in("installation", "check_flash_attn"),
    "disk": _in("machine", "check_disk"),
    "shared memory": _in("machine", "check_shared_memory"),
    "leftovers": _in("leftovers", "check_leftovers"),
    "ports": _in("machine", "check_ports"),
    "authentication": _in("cluster", "check_authentication"),
    "ray": _in("cluster", "check_ray"),
    "embedder": _in("bank", "check_embedder"),
    "bank": _in("bank", "check_bank"),
    "endpoint": _in("bank", "check_endpoint"),
    "data": _in("environments", "check_data"),
    "environments": _in("environments", "check_environments"),
    "sandbox": _in("environments", "check_sandbox"),
    "settings": _in("run_settings", "check_settings"),
    "folder": _in("run_settings", "check_run_folder"),
    "slots": _in("run_settings", "check_slots"),
}
_MISSING_VARIABLE = re.compile(r"Environment variable '(\w+)' not found")
"""In an error of OmegaConf: recipes take folders from the environment."""
_SEE_TRACEBACK = "none is known; COMPRL_VERBOSE=1 comprl doctor with the same arguments prints the traceback"
"""Remedy of what a check has not foreseen."""
DEVICE_CHECKS = ("device", "flash-attn", "shared memory", "leftovers", "ray", "slots")
"""Of the machine that will run it, not of one that builds for another."""


def run_checks(checks: Mapping[str, Check], setup: Setup) -> Iterator[Finding]:
    """Yield what each check finds; one that fails stops no other."""
    for name, check in checks.items():
        try:
            yield Finding(name, Status.OK, _message(check, setup))
        except Skipped as reason:
            yield Finding(name, Status.SKIPPED, str(reason))
        except Problem as problem:
            yield Finding(name, problem.status, str(problem), problem.remedy)
        except IncompatibleVerlError:  # concerns every check that reads a setting: that of verl says it
            yield Finding(name, Status.SKIPPED, "not known: verl cannot be used, see its own check")
        except ModuleNotFoundError as error:
            remedy = install_command(error.name) if error.name else _SEE_TRACEBACK
            yield Finding(name, Status.FAILED, describe_missing(error).partition(": pip ")[0], remedy)
        except Exception as error:
            if is_verbose():
                traceback.print_exc()
            yield _unforeseen(name, error)


def _message(check: Check, setup: Setup) -> str:
    """Return what a check says; what verl and other libraries print in it would be in the middle of our output."""
    with redirect_stdout(sys.stderr if is_verbose() else io.StringIO()):
        return check(setup)


def _unforeseen(name: str, error: Exception) -> Finding:
    from verl_comprl.config.reading import ConfigError

    if isinstance(error, ConfigError):  # concerns every check that reads a setting: one of them says it
        if name != "settings":
            return Finding(name, Status.SKIPPED, "not known: the settings are wrong")
        from verl_comprl.cli.doctor.run_settings import REMEDY

        return Finding(name, Status.FAILED, str(error), REMEDY)
    message = str(error).split("\n")[0] or repr(error)
    variable = _MISSING_VARIABLE.search(message)
    return Finding(name, Status.FAILED, message, f"export {variable[1]}=…" if variable else _SEE_TRACEBACK)
