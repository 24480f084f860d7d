"""Checks of Ray: it requires its token from clients, it starts or answers, and its workers have our plugin.

A process of its own asks, see ``ray_probe``: Ray may wait for minutes, and what it sets must not stay in this process.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping

from verl_comprl.cli.doctor.finding import Problem
from verl_comprl.cli.doctor.setup import Setup
from verl_comprl.launch.versions import MISSING, SOURCE, installed_versions
from verl_comprl.platform.ray_token import token_is_disabled
from verl_comprl.requirements import reinstall

_SECONDS = 300.0
"""A busy machine takes minutes to import verl in two processes."""


def check_authentication(_: Setup) -> str:
    """Check that Ray requires its token from clients."""
    if not token_is_disabled():
        return "RAY_AUTH_MODE does not disable Ray's token"
    address = os.environ.get("RAY_ADDRESS")
    who = f"whoever reaches the Ray cluster {address}" if address else "every user of this machine"
    remedy = "unset RAY_AUTH_MODE" + (", here and where the cluster is started" if address else "")
    raise Problem(f"with RAY_AUTH_MODE=disabled {who} can run code in a run", remedy, warning=True)


def check_ray(setup: Setup) -> str:
    """Run a task in a worker of Ray."""
    address = os.environ.get("RAY_ADDRESS")
    place = f"the Ray cluster {address}" if address else "a Ray of this machine"
    status = "ray start --head, and read what it says"
    if address:
        status = f"ray start --head on its first node, or unset RAY_ADDRESS; to look: ray status --address {address}"
    found = _probe(setup, place, status)
    if error := found.get("error"):
        raise Problem(f"{place}: {error}", status)
    if found.get("plugin_error"):
        raise Problem(
            f"a worker of {place} does not load verl-comprl: {found['plugin_error']}",
            "pip install verl-comprl on every node, in the environment that started Ray there",
        )
    there, here = found["versions"], installed_versions()
    if others := [name for name, own in here.items() if there.get(name) != own]:
        shown = ", ".join(f"{name} is {there.get(name)} there and {here[name]} here" for name in others)
        raise Problem(f"a worker of {place} has other versions: {shown}", _same_versions(others, here))
    resources = found["resources"]
    if address:
        setup.resources = resources
    slots = f" ({resources.get('GPU', 0):g} device slots, {resources.get('CPU', 0):g} CPUs)" if address else ""
    return f"a worker of {place} loads verl-comprl{slots}"


def _same_versions(names: Iterable[str], here: Mapping[str, str]) -> str:
    """Return the commands that install on another node what this one has, of those with these names."""
    commands = {}  # each once
    for name in names:
        if name == "Python":
            command = f"make clean setup PYTHON=python{here[name].rpartition('.')[0]}"
        elif name in ("verl-comprl", SOURCE):
            command = reinstall()
        elif here[name] == MISSING:
            command = f"pip uninstall {name}"
        else:
            command = f"pip install --no-deps {name}=={here[name]}"
        commands[command] = None
    return f"on every node: {' && '.join(commands)}"


def _probe(setup: Setup, place: str, status: str) -> dict:
    # Not the whole config, which may be what is wrong.
    arguments = [override for override in setup.overrides if override.lstrip("+").startswith("ray_kwargs.")]
    command = [sys.executable, "-m", "verl_comprl.cli.doctor.ray_probe", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise Problem(f"{place} has not run a task within {_SECONDS:g} s", status) from None
    try:
        return json.loads(out.splitlines()[-1])
    except (IndexError, ValueError):
        reason = err.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        raise Problem(f"{place} cannot be used: {reason[0]}", status) from None
