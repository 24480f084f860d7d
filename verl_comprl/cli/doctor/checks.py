"""All checks, in their order, and how they are run."""

import io
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout

from verl_comprl.cli.doctor import bank, cluster, environments, installation, leftovers, machine, run_settings
from verl_comprl.cli.doctor.finding import Finding, Problem, Skipped, Status
from verl_comprl.cli.doctor.setup import Setup
from verl_comprl.config.reading import ConfigError
from verl_comprl.display.quiet import is_verbose

Check = Callable[[Setup], str]
"""Returns what is right, or raises what is wrong, a ``Problem`` with a remedy or anything, or ``Skipped``."""

CHECKS: dict[str, Check] = {
    "versions": installation.check_versions,
    "verl": installation.check_verl,
    "plugin": installation.check_plugin,
    "inference": installation.check_inference,
    "device": machine.check_device,
    "flash-attn": installation.check_flash_attn,
    "disk": machine.check_disk,
    "shared memory": machine.check_shared_memory,
    "leftovers": leftovers.check_leftovers,
    "ports": machine.check_ports,
    "authentication": cluster.check_authentication,
    "ray": cluster.check_ray,
    "embedder": bank.check_embedder,
    "bank": bank.check_bank,
    "endpoint": bank.check_endpoint,
    "data": environments.check_data,
    "environments": environments.check_environments,
    "sandbox": environments.check_sandbox,
    "settings": run_settings.check_settings,
    "folder": run_settings.check_run_folder,
    "slots": run_settings.check_slots,
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
        except ConfigError as error:  # concerns every check that reads a setting: one of them says it
            yield _wrong_settings(name, error)
        except Exception as error:
            if is_verbose():
                traceback.print_exc()
            message = str(error).split("\n")[0] or repr(error)
            variable = _MISSING_VARIABLE.search(message)
            yield Finding(name, Status.FAILED, message, f"export {variable[1]}=…" if variable else _SEE_TRACEBACK)


def _message(check: Check, setup: Setup) -> str:
    """Return what a check says; what verl and other libraries print in it would be in the middle of our output."""
    with redirect_stdout(sys.stderr if is_verbose() else io.StringIO()):
        return check(setup)


def _wrong_settings(name: str, error: ConfigError) -> Finding:
    if name == "settings":
        return Finding(name, Status.FAILED, str(error), run_settings.REMEDY)
    return Finding(name, Status.SKIPPED, "not known: the settings are wrong")
