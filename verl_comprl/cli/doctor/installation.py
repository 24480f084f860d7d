"""Checks of the installed packages: versions, verl with our plugin, inference, flash-attn."""

import importlib.util
import platform
import sys
from importlib.metadata import entry_points

from verl_comprl.cli.doctor.finding import SEE_TRACEBACK, Problem, Skipped
from verl_comprl.cli.doctor.setup import Setup
from verl_comprl.requirements import install_command, install_tested, reinstall, tested_versions, version_of

_PYTHON = ((3, 11), (3, 12))


def check_versions(_: Setup) -> str:
    """Compare the versions with the supported ones."""
    if sys.version_info[:2] not in _PYTHON:
        raise Problem(
            f"Python {platform.python_version()} is not supported; supported are 3.11 and 3.12",
            "make clean setup PYTHON=python3.12",
        )
    kind, table = tested_versions()
    found = {name: version_of(name) for name in table}
    others = {name: wanted for name, wanted in table.items() if (found[name] or "none").partition("+")[0] != wanted}
    if others:
        shown = ", ".join(f"{name} {found[name] or 'is missing'} (tested: {wanted})" for name, wanted in others.items())
        raise Problem(f"not the versions that are tested on a {kind}: {shown}", install_tested(), warning=True)
    shown = ", ".join(f"{name} {found[name]}" for name in table)
    return f"Python {platform.python_version()}, {shown}: tested together on a {kind}"


def check_verl(_: Setup) -> str:
    """Check version and symbols of verl."""
    from verl_comprl.compat import IncompatibleVerlError, check_symbols, installed_verl

    try:
        installed = installed_verl()
        if version_of("vllm") is None:
            raise Skipped("not known without vLLM, which it imports")
        try:
            from verl_comprl import plugin  # noqa: F401  verl lacks on a CPU what it registers
        except ImportError as error:
            raise Skipped("not known: the plugin cannot be imported, see its own check") from error
        check_symbols()
    except IncompatibleVerlError as error:
        raise Problem(error.problem, error.remedy or SEE_TRACEBACK) from error
    return f"version {installed}, which this package supports"


def check_plugin(_: Setup) -> str:
    """Check that verl loads our plugin in this process, and that all registrations work."""
    if "comprl" not in {entry.name for entry in entry_points(group="verl.plugins")}:
        raise Problem(
            "verl-comprl is not installed as a distribution, so verl does not load it", "pip install --no-deps -e ."
        )
    from verl_comprl import plugin  # what it lacks is said as in every check
    from verl_comprl.compat import IncompatibleVerlError

    try:
        plugin.verify()
    except IncompatibleVerlError:  # which its own check says
        raise
    except plugin.PluginLeftOut as error:
        raise Problem(str(error), "unset VERL_USE_EXTERNAL_PLUGINS") from error
    except Exception as error:  # what it imports, of ours or of a library, may raise anything
        missing = error.__cause__
        name = missing.name if isinstance(missing, ModuleNotFoundError) else None
        raise Problem(str(error), (install_command(name) if name else reinstall()) or SEE_TRACEBACK) from error
    return "verl loads verl-comprl in this process"


def check_inference(_: Setup) -> str:
    """Check that there is a vLLM."""
    found = version_of("vllm")
    if found is None:
        raise Problem(
            "no distribution called vllm is installed: on GPUs install verl-comprl[gpu], on a CPU run make setup",
            install_tested(),
        )
    return f"vLLM {found} generates text for both models"


def check_flash_attn(_: Setup) -> str:
    """Check flash-attn where there are GPUs."""
    from verl_comprl.platform.detection import uses_cpu

    if uses_cpu():
        raise Skipped("not used on a CPU")
    if importlib.util.find_spec("flash_attn") is None:
        raise Problem(
            "flash-attn is missing: verl's default attention and use_remove_padding need it",
            "pip install --no-build-isolation 'verl-comprl[flash-attn]'",
        )
    try:
        import flash_attn  # pyright: ignore[reportMissingImports]  # compiled: it fails here if it does not fit torch
    except ImportError as error:
        raise Problem(
            f"flash-attn does not fit the installed torch: {error}",
            "pip install --force-reinstall --no-deps --no-build-isolation --no-cache-dir flash-attn==2.8.3",
        ) from error
    return f"flash-attn {flash_attn.__version__}"
