"""``comprl doctor``: checks the installation and says how to repair it."""

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, entry_points, version


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("doctor", help="check the installation")
    parser.add_argument(
        "--without-device", action="store_true", help="on a machine that builds for another: look for no accelerator"
    )
    parser.set_defaults(run=run)


def _verl() -> str:
    from verl_comprl.compat import check_symbols, installed_verl

    check_symbols()
    return f"version {installed_verl()}, which this package supports"


def _plugin() -> str:
    if "comprl" not in {entry.name for entry in entry_points(group="verl.plugins")}:
        raise RuntimeError("verl-comprl is not installed as a distribution, so verl does not load it: pip install -e .")
    from verl_comprl import plugin

    plugin.verify()
    return "verl loads verl-comprl in every process"


def _device() -> str:
    import torch
    from verl.plugin.platform import get_platform

    from verl_comprl.platform.detection import describe_cpu

    name = get_platform().device_name
    if name == "cpu":
        return describe_cpu()
    if torch.accelerator.is_available():
        return f"{torch.accelerator.device_count()} x {name}"
    if os.environ.get("RAY_ADDRESS"):
        return f"verl expects {name} on the Ray cluster {os.environ['RAY_ADDRESS']}; this machine has none"
    raise RuntimeError(
        f"verl expects {name}, but PyTorch finds none: unset VERL_PLATFORM={os.environ.get('VERL_PLATFORM', '')}, or "
        "install a driver and a PyTorch build for the GPU"
    )


def _inference() -> str:
    try:
        return f"vLLM {version('vllm')} generates text for both models"
    except PackageNotFoundError:
        raise RuntimeError(
            "no distribution called vllm is installed: on GPUs pip install 'verl-comprl[gpu]', on a CPU run make setup"
        ) from None


def _embedder() -> str:
    if importlib.util.find_spec("sentence_transformers") is None:
        raise RuntimeError("sentence-transformers is missing: pip install 'verl-comprl[embed]'")
    return "sentence-transformers turns experience into vectors that can be searched"


def _environments() -> str:
    from env_adapters import list_environments, make

    usable, unusable = [], []
    for name in list_environments():
        try:
            make(name).close()
            usable.append(name)
        except ImportError as error:
            unusable.append(f"{name} ({error})")
    return "; not usable: ".join(filter(None, (", ".join(usable), ", ".join(unusable))))


CHECKS: dict[str, Callable[[], str]] = {
    "verl": _verl,
    "plugin": _plugin,
    "device": _device,
    "inference": _inference,
    "embedder": _embedder,
    "environments": _environments,
}


def run(options: argparse.Namespace) -> int:
    """Run every check; exit code 1 if one failed."""
    from verl_comprl.platform.detection import select_platform

    # As for a cluster, whose workers may have what this machine lacks: no platform is chosen.
    select_platform(cluster=options.without_device)
    checks = {name: check for name, check in CHECKS.items() if name != "device" or not options.without_device}
    failed = 0
    for name, check in checks.items():
        try:
            print(f"ok    {name}: {check()}")
        except Exception as error:
            failed += 1
            print(f"FAIL  {name}: {error}")
    if failed:
        print(f"{failed} of {len(checks)} checks failed (Python {sys.version.split()[0]})")
    else:
        print("All checks passed.")
    return 1 if failed else 0
