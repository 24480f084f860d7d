"""Uses SWE-bench's own package to complete older rows and to parse test logs.

Owns every import of ``swebench``, which happens only when needed: rows of version 5 with pytest's log format do not
need it.
"""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

from env_adapters.swebench.instances import Instance
from env_adapters.swebench.sandbox import WORK_TREE
from env_adapters.swebench.verdict import FAILED, STATUSES

_CONDA = "testbed"  # name of the conda environment in SWE-bench's images
LogParser = Callable[[str, Any], dict[str, str]]


def complete(instance: Instance) -> Instance:
    """Return the task with the fields of version 5, computed by ``swebench`` 4 if they are missing.

    Raises:
        ValueError: If they are missing and cannot be computed.
    """
    if instance.log_parser:
        return instance
    try:
        constants = import_module("swebench.harness.constants")
        parsers = import_module("swebench.harness.log_parsers").MAP_REPO_TO_PARSER
        make_script = import_module("swebench.harness.test_spec.create_scripts").make_eval_script_list
    except ImportError as error:
        raise ValueError(
            f"the row of {instance.instance_id!r} is of SWE-bench 4, which lacks the fields to run its tests. Use the "
            f"rows of SWE-bench 5, or install swebench==4.1.0 ({error})"
        ) from error
    repo, version = instance.repo, instance.version
    try:
        specification = constants.MAP_REPO_VERSION_TO_SPECS[repo][version]
        parser = parsers[repo]
    except KeyError as error:
        raise ValueError(f"swebench does not know {repo!r} in version {version!r}") from error
    row = {name: getattr(instance, name) for name in Instance.__dataclass_fields__}
    script = make_script(row, specification, _CONDA, WORK_TREE, instance.base_commit, instance.test_patch)
    name = instance.instance_id.lower().replace("__", "_1776_")
    return replace(
        instance,
        image=instance.image or f"swebench/sweb.eval.x86_64.{name}:latest",
        eval_script="\n".join(["#!/bin/bash", "set -uxo pipefail", *script]) + "\n",
        log_parser=parser.__name__,
        eval_type="fail_only" if repo in constants.FAIL_ONLY_REPOS else "pass_and_fail",
    )


def log_parser(name: str) -> LogParser:
    """Return the log parser of a name, a function of the log's text and the task.

    Raises:
        ValueError: If the name is unknown, or needs ``swebench``, which is not installed.
    """
    if name == "parse_log_pytest":
        return _parse_pytest
    try:
        log_parsers = import_module("swebench.harness.log_parsers")
    except ImportError as error:
        raise ValueError(f"log parser {name!r} is one of swebench's: install swebench ({error})") from error
    known = getattr(log_parsers, "PARSER_REGISTRY", None)  # version 5
    if known is None:
        known = {parser.__name__: parser for parser in log_parsers.MAP_REPO_TO_PARSER.values()}
    if name not in known:
        raise ValueError(f"swebench has no log parser {name!r}; it has: {', '.join(sorted(known))}")
    return known[name]


def _parse_pytest(log: str, instance: Any) -> dict[str, str]:
    """Parse pytest's summary (option -rA): each line has a status, a test's name and, for a failure, its reason."""
    statuses: dict[str, str] = {}
    for line in log.split("\n"):
        status, _, rest = line.partition(" ")
        name = (rest.partition(" - ")[0] if status == FAILED else rest).split()[:1]
        # "SKIPPED [2] file:line: reason" gives a number of tests but no names.
        if status in STATUSES and name and not (status == "SKIPPED" and name[0].startswith("[")):
            statuses[name[0]] = status
    return statuses
