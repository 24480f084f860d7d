"""All checks, in their order, and how they are run."""

import io
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from importlib import import_module

from verl_comprl.cli.doctor.finding import SEE_TRACEBACK, Finding, Problem, Skipped, Status
from verl_comprl.cli.doctor.setup import Setup
from verl_comprl.compat import IncompatibleVerlError
from verl_comprl.display.first_line import first_line
from verl_comprl.display.quiet import is_verbose
from verl_comprl.requirements import install_command

Check = Callable[[Setup], str]
"""Returns what is right, or raises what is wrong, a ``Problem`` with a remedy or anything, or ``Skipped``."""


def _imported_when_run(module: str, function: str) -> Check:
    """Return a check that imports its module when it runs: a library that is missing stops no other."""

    def check(setup: Setup) -> str:
        return getattr(import_module(f"{__package__}.{module}"), function)(setup)

    return check


CHECKS: dict[str, Check] = {
    "versions": _imported_when_run("installation", "check_versions"),
    # Before anything else imports what it registers with, since a registration that fails does so once.
    "plugin": _imported_when_run("installation", "check_plugin"),
    "verl": _imported_when_run("installation", "check_verl"),
    "inference": _imported_when_run("installation", "check_inference"),
    # Before a Ray is started and models are looked for: a mistyped key is found at once.
    "settings": _imported_when_run("run_settings", "check_settings"),
    "device": _imported_when_run("machine", "check_device"),
    "flash-attn": _imported_when_run("installation", "check_flash_attn"),
    "disk": _imported_when_run("machine", "check_disk"),
    "shared memory": _imported_when_run("machine", "check_shared_memory"),
    "leftovers": _imported_when_run("leftovers", "check_leftovers"),
    "ports": _imported_when_run("machine", "check_ports"),
    "authentication": _imported_when_run("cluster", "check_authentication"),
    "ray": _imported_when_run("cluster", "check_ray"),
    "embedder": _imported_when_run("bank", "check_embedder"),
    "bank": _imported_when_run("bank", "check_bank"),
    "endpoint": _imported_when_run("bank", "check_endpoint"),
    "data": _imported_when_run("environments", "check_data"),
    "environments": _imported_when_run("environments", "check_environments"),
    "sandbox": _imported_when_run("environments", "check_sandbox"),
    "folder": _imported_when_run("run_settings", "check_run_folder"),
    "slots": _imported_when_run("run_settings", "check_slots"),
}
_MISSING_VARIABLE = re.compile(r"Environment variable '(\w+)' not found")
"""In an error of OmegaConf: recipes take folders from the environment."""
DEVICE_CHECKS = ("device", "flash-attn", "shared memory", "leftovers", "ray", "slots")
"""Checks that ``--without-device`` leaves out: of the machine that will run it, not of one that builds for another."""


def run_checks(checks: Mapping[str, Check], setup: Setup) -> Iterator[Finding]:
    """Yield what each check finds; one that fails stops no other."""
    for name, check in checks.items():
        try:
            finding = Finding(name, Status.OK, _message(check, setup))
        except Exception as error:
            finding = _finding(name, error)
            if finding.remedy == SEE_TRACEBACK and is_verbose():
                traceback.print_exc()
        yield finding


def _message(check: Check, setup: Setup) -> str:
    """Return what a check says; what verl and other libraries print in it would be in the middle of our output."""
    with redirect_stdout(sys.stderr if is_verbose() else io.StringIO()):
        return check(setup)


def _finding(name: str, error: Exception) -> Finding:
    """Return what a check means that has raised this."""
    if isinstance(error, Skipped):
        return Finding(name, Status.SKIPPED, str(error))
    if isinstance(error, Problem):
        return Finding(name, error.status, str(error), error.remedy)
    if isinstance(error, IncompatibleVerlError):  # concerns every check that reads a setting: that of verl says it
        return Finding(name, Status.SKIPPED, "not known: verl cannot be used, see its own check")
    if isinstance(error, ModuleNotFoundError) and error.name:
        return Finding(name, Status.FAILED, f"{error.name} is missing", install_command(error.name) or SEE_TRACEBACK)
    if _is_of_the_settings(error):  # concerns every check that reads a setting: one of them says it
        if name != "settings":
            return Finding(name, Status.SKIPPED, "not known: the settings are wrong")
        from verl_comprl.cli.doctor.run_settings import REMEDY

        return Finding(name, Status.FAILED, str(error), REMEDY)
    message = first_line(error)
    variable = _MISSING_VARIABLE.search(message)
    return Finding(name, Status.FAILED, message, f"export {variable[1]}=…" if variable else SEE_TRACEBACK)


def _is_of_the_settings(error: Exception) -> bool:
    try:
        from verl_comprl.config.reading import ConfigError
    except Exception:  # a library of it is missing or broken, so that nothing can have raised one
        return False
    return isinstance(error, ConfigError)
