"""Checks of the environments with their data, and of SWE-bench's sandbox."""

import os
from collections.abc import Mapping
from pathlib import Path

from env_adapters import list_environments, make
from env_adapters.alfworld import games
from env_adapters.swebench import instances
from env_adapters.swebench.bubblewrap import start_bubblewrap
from env_adapters.swebench.sandbox import Limits, SandboxError, SandboxLost
from env_adapters.webshop import records
from verl_comprl.cli.doctor.finding import SEE_TRACEBACK, Problem
from verl_comprl.cli.doctor.setup import Setup
from verl_comprl.display.first_line import first_line
from verl_comprl.requirements import own_extras

_DATA = {
    games.VARIABLE: ("alfworld", "generated games"),
    instances.VARIABLE: ("swebench", "bundled repositories"),
    records.VARIABLE: ("webshop", "a synthetic shop"),
}
"""Variables that name data of an environment, and what it uses without them."""

_OWN = {games.VARIABLE: games.GENERATED, instances.VARIABLE: instances.BUNDLED, records.VARIABLE: records.SYNTHETIC}
"""Their values for the data that come with an environment."""


def check_environments(_: Setup) -> str:
    """Make each environment once."""
    usable, missing, broken = [], {}, {}
    for name in list_environments():
        try:
            make(name).close()
            usable.append(name)
        except ImportError as error:
            missing[name] = error
        except Exception as error:  # of the family, or of its libraries
            broken[name] = error
    if broken:
        shown = "; ".join(f"{name}: {first_line(error)}" for name, error in broken.items())
        variables = [variable for variable, (name, _) in _DATA.items() if name in broken and os.environ.get(variable)]
        remedy = f"unset {' '.join(variables)}, or let it name the data" if variables else _install(broken)
        raise Problem(f"not usable: {shown}", remedy) from ExceptionGroup("environments", [*broken.values()])
    data = ", ".join(
        f"{name} from {os.environ[variable]}" if os.environ.get(variable) else f"{name} from {default}"
        for variable, (name, default) in _DATA.items()
        if name in usable
    )
    if missing:
        shown = "; ".join(f"{name} ({first_line(error)})" for name, error in missing.items())
        cause = ExceptionGroup("environments", [*missing.values()])
        raise Problem(f"{', '.join(usable)}; not usable: {shown}", _install(missing), warning=True) from cause
    return f"{', '.join(usable)} ({data})"


def _install(unusable: Mapping[str, Exception]) -> str:
    """Return the command that installs what environments are made for, of those that come with an extra."""
    extras = [name for name in unusable if name in own_extras()]
    return f"pip install 'verl-comprl[{','.join(extras)}]'" if extras else SEE_TRACEBACK


def check_data(_: Setup) -> str:
    """Check that variables which name data of an environment name something that exists."""
    given = {variable: os.environ[variable] for variable in _DATA if os.environ.get(variable)}
    folders = {variable: path for variable, path in given.items() if path != _OWN[variable]}
    for variable, path in folders.items():
        if not Path(path).expanduser().exists():
            raise Problem(f"{variable}={path} does not exist", f"unset {variable}, or download the data there")
    if games.VARIABLE in folders:
        try:
            games.resolve_data(None)
        except ValueError as error:
            raise Problem(
                f"ALFWORLD_DATA={given['ALFWORLD_DATA']} has no games", "alfworld-download, or unset ALFWORLD_DATA"
            ) from error
    return ", ".join(f"{name}={path}" for name, path in given.items()) or (
        f"none of {', '.join(_DATA)} is set: environments use what comes with them"
    )


def check_sandbox(_: Setup) -> str:
    """Run a command in a sandbox."""
    try:
        sandbox = start_bubblewrap(Limits())
        try:
            output = sandbox.exec("echo inside")
        finally:
            sandbox.close()
    except (SandboxError, SandboxLost, OSError) as error:
        installed = "not found" not in str(error)
        remedy = "sysctl -w kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0"
        raise Problem(
            f"SWE-bench cannot be played with bubblewrap: {error}",
            remedy if installed else "apt-get install bubblewrap",
            warning=True,
        ) from error
    if not output.ok:
        raise Problem(f"a command in the sandbox failed: {output}", "bwrap --ro-bind / / true", warning=True)
    return "bubblewrap runs SWE-bench's commands"
