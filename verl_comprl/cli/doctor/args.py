"""Command-line arguments of ``comprl doctor``, and its output."""

import argparse
import json
import platform
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verl_comprl.cli.doctor.finding import Finding

_DESCRIPTION = (
    "Check the installation and this machine. With arguments of comprl train, also check what that run needs: "
    "settings, models, data, device slots, bank, embedder and endpoint; arguments for the last three can be given "
    "alone. Starts a small Ray, or asks the cluster in RAY_ADDRESS. The exit code is 1 if a check failed."
)
_MARKS = {"ok": "ok   ", "skipped": "-    ", "warning": "warn ", "failed": "FAIL "}


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "doctor", help="check the installation, and what a run needs", description=_DESCRIPTION
    )
    parser.add_argument(
        "--without-device",
        action="store_true",
        help="on a machine that builds for another: look for no accelerator, and start no Ray",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--config-dir", type=Path, help="folder of the run's recipe")
    parser.add_argument("--config-name", help="the run's recipe")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings of the run")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the checks; exit code 1 if one failed."""
    from verl_comprl.cli.doctor.checks import CHECKS, DEVICE_CHECKS, run_checks
    from verl_comprl.cli.doctor.setup import Setup
    from verl_comprl.platform.detection import select_platform

    # As for a cluster, whose workers may have what this machine lacks: no platform is chosen.
    select_platform(cluster=options.without_device or None)
    left_out = DEVICE_CHECKS if options.without_device else ()
    checks = {name: check for name, check in CHECKS.items() if name not in left_out}
    setup = Setup(tuple(options.overrides), options.config_dir, options.config_name)
    findings = run_checks(checks, setup)
    return _print_json(findings) if options.json else _print(findings)


def _print(findings: Iterable["Finding"]) -> int:
    statuses = []
    for finding in findings:  # one after the other, as they are found
        statuses.append(finding.status)
        print(f"{_MARKS[finding.status]} {finding.check}: {finding.message}", flush=True)
        if finding.remedy:
            print(f"      fix: {finding.remedy}", flush=True)
    failed, warned, skipped = (statuses.count(status) for status in ("failed", "warning", "skipped"))
    made = len(statuses) - skipped
    text = "All checks passed" if made else "Nothing was checked"
    if failed:
        text = f"{failed} of {made} checks failed (Python {platform.python_version()})"
    elif warned:
        text += f", {warned} with a warning"
    print(text + (f"; {skipped} skipped." if skipped else "."))
    return 1 if failed else 0


def _print_json(findings: Iterable["Finding"]) -> int:
    found = list(findings)
    ok = all(finding.status != "failed" for finding in found)
    print(json.dumps({"ok": ok, "python": platform.python_version(), "findings": [asdict(item) for item in found]}))
    return 0 if ok else 1
