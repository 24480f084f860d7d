"""``comprl doctor``: is everything in place, and if not, what to do."""

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.metadata import entry_points


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("doctor", help="check the installation")
    parser.set_defaults(run=run)


def _verl() -> str:
    from verl_comprl.compat import check_symbols, installed_verl

    check_symbols()
    return installed_verl()


def _registration() -> str:
    if "comprl" not in {entry.name for entry in entry_points(group="verl.plugins")}:
        raise RuntimeError("verl-comprl is not installed as a distribution, so verl does not load it: pip install -e .")
    from verl_comprl import plugin
    from verl_comprl.names import TRAINERS

    plugin.verify()
    return f"trainers {', '.join(TRAINERS)}"


def _device() -> str:
    import torch
    from verl.plugin.platform import get_platform

    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} CUDA devices, verl platform {get_platform().device_name}"
    if get_platform().device_name != "cpu":
        raise RuntimeError("no GPU is visible: to run on the CPU, set VERL_PLATFORM=cpu and trainer.device=cpu")
    return "CPU"


def _vllm() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("vllm")
    except PackageNotFoundError:
        raise RuntimeError(
            "no distribution called vllm is installed: on GPUs pip install 'verl-comprl[gpu]', on a CPU run make setup"
        ) from None


def _environments() -> str:
    from env_adapters import list_environments, make

    states = []
    for name in list_environments():
        try:
            make(name).close()
            states.append(name)
        except ImportError as error:
            states.append(f"{name} (not usable: {error})")
    return ", ".join(states)


def _embedder() -> str:
    if importlib.util.find_spec("sentence_transformers") is None:
        raise RuntimeError("sentence-transformers is missing: pip install 'verl-comprl[embed]'")
    return "sentence-transformers"


CHECKS: dict[str, Callable[[], str]] = {
    "verl": _verl,
    "registration": _registration,
    "device": _device,
    "vllm": _vllm,
    "embedder": _embedder,
    "environments": _environments,
}


def run(_: argparse.Namespace) -> int:
    """Run every check; exit code 1 if one failed."""
    os.environ.setdefault("VERL_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    failed = 0
    for name, check in CHECKS.items():
        try:
            print(f"ok    {name}: {check()}")
        except Exception as error:
            failed += 1
            print(f"FAIL  {name}: {error}")
    if failed:
        print(f"{failed} of {len(CHECKS)} checks failed (Python {sys.version.split()[0]})")
    return 1 if failed else 0
