"""Parsing the output of tests into a verdict, without a sandbox."""

import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from env_adapters.swebench.evaluation import marked_script, read_log, read_report, with_tests
from env_adapters.swebench.instances import Instance
from env_adapters.swebench.official import complete, log_parser
from env_adapters.swebench.verdict import Verdict, judge, reject

MARK = "0123abcd"


def task(fail: tuple[str, ...], keep: tuple[str, ...] = (), **fields: Any) -> Instance:
    values: dict[str, Any] = dict.fromkeys(Instance.__dataclass_fields__, "x")
    values |= {"log_parser": "", "eval_script": "", "image": "", "eval_type": ""}
    values |= {"FAIL_TO_PASS": fail, "PASS_TO_PASS": keep} | fields
    return Instance(**values)


@pytest.mark.parametrize(
    ("statuses", "resolved", "score"),
    [
        ({"a": "PASSED", "b": "PASSED", "c": "PASSED"}, True, 1.0),
        ({"a": "XFAIL", "b": "PASSED", "c": "SKIPPED"}, True, 1.0),
        ({"a": "SKIPPED", "b": "PASSED", "c": "PASSED"}, False, 0.5),
        ({"a": "PASSED", "b": "FAILED", "c": "PASSED"}, False, 0.5),
        ({"a": "PASSED", "b": "PASSED", "c": "ERROR"}, False, 0.0),
        ({"a": "PASSED", "b": "PASSED"}, False, 0.0),
        ({"b": "PASSED", "c": "PASSED"}, False, 0.5),
        ({}, False, 0.0),
    ],
)
def test_resolved_needs_all_tests_of_both_lists_to_pass(statuses: dict[str, str], resolved: bool, score: float) -> None:
    verdict = judge(task(("a", "b"), ("c",)), statuses)
    assert (verdict.resolved, verdict.score) == (resolved, score)


def test_truncated_names_match_if_all_matching_tests_agree() -> None:
    cut = task(("t.py::x[a-", "t.py::y"), ("t.py::z[(",))
    assert judge(
        cut, {"t.py::x[a-1]": "PASSED", "t.py::x[a-2]": "XFAIL", "t.py::y": "PASSED", "t.py::z[(1)]": "PASSED"}
    ).resolved
    mixed = {"t.py::x[a-1]": "PASSED", "t.py::x[a-2]": "FAILED", "t.py::y": "PASSED", "t.py::z[(1)]": "PASSED"}
    assert judge(cut, mixed).fixed == 1
    assert judge(task(("t.py::x",)), {"t.py::x[1]": "PASSED"}).fixed == 0


def test_logs_that_name_only_failures() -> None:
    quiet = task(("a",), ("b",), eval_type="fail_only")
    assert judge(quiet, {}).resolved and not judge(quiet, {"a": "FAILED"}).resolved
    assert not judge(quiet, {"b": "FAILED"}).resolved
    assert not reject(quiet, "did not run").resolved and reject(quiet, "did not run").score == 0.0
    assert Verdict(0, 0, 0).score == 1.0


def test_a_script_is_marked_once_and_keeps_the_status_of_its_tests() -> None:
    script = "set -x\n: '>>>>> Start Test Output'\npytest -rA\n: '>>>>> End Test Output'\ngit checkout x"
    assert marked_script(script, MARK).split("\n") == [
        "set -x",
        f"echo {MARK}",
        "pytest -rA",
        f"status=$?; echo; echo {MARK} $status",
        "git checkout x",
    ]
    for bad in ("", "pytest", script + script, "\n".join(reversed(script.split("\n")))):
        with pytest.raises(ValueError, match="Start Test Output"):
            marked_script(bad, MARK)


def log(body: str, status: int = 0) -> str:
    return f"+ echo {MARK}\n{MARK}\n{body}\n+ status=0\n{MARK} {status}\n+ git checkout\nPASSED after\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (log("PASSED a\nFAILED b - x", 1), {"a": "PASSED", "b": "FAILED"}),
        (log("PASSED a"), {"a": "PASSED"}),
        (log("PASSED a", 1), None),  # reports no failure, but the command failed
        (log("PASSED a\nERROR b", 2), {"a": "PASSED", "b": "ERROR"}),
        (log(""), {}),
        ("", None),
        (f"{MARK}\nPASSED a\n", None),
        (f"PASSED a\n>>>>> End Test Output\n{MARK} 0\n", None),
        (log(f"PASSED a\n{MARK[1:]} 0"), {"a": "PASSED"}),
    ],
)
def test_only_complete_and_consistent_logs_are_accepted(text: str, expected: dict[str, str] | None) -> None:
    assert read_log(text, MARK, task(("a",), log_parser="parse_log_pytest")) == expected


def test_a_report_is_delimited_by_two_marks() -> None:
    assert read_report(f'x{MARK}{{"a": "PASSED"}}{MARK}y', MARK) == {"a": "PASSED"}
    torn = f'{MARK}{{"a": "PASSED"}}'
    for text in ("", MARK, torn, '{"a": "PASSED"}', f"{MARK}[1]{MARK}", f"{MARK}{{{MARK}", torn * 3):
        assert read_report(text, MARK) is None


def test_pytest_s_summary() -> None:
    text = (
        "tests/a.py::test_x PASSED   [ 50%]\nPASSED tests/a.py::test_x\nFAILED tests/a.py::test_y - assert 1 == 2\n"
        "FAILED tests/a.py::test_z[a - b] - x\nSKIPPED [1] tests/a.py:3: no reason\nXFAIL tests/a.py::test_w\n"
        "ERROR tests/b.py\nPASSED\nPASSEDtests/a.py::no\nXPASS tests/a.py::v\n"
    )
    assert log_parser("parse_log_pytest")(text, None) == {
        "tests/a.py::test_x": "PASSED",
        "tests/a.py::test_y": "FAILED",
        "tests/a.py::test_z[a": "FAILED",
        "tests/a.py::test_w": "XFAIL",
        "tests/b.py": "ERROR",
    }


@pytest.fixture
def install_modules(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install stand-ins for parts of the package swebench."""

    def install(**modules: dict[str, Any]) -> None:
        for name in ("swebench", "swebench.harness", "swebench.harness.test_spec"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        for name, content in modules.items():
            module = ModuleType(f"swebench.harness.{name}")
            module.__dict__.update(content)
            monkeypatch.setitem(sys.modules, module.__name__, module)
            parent, _, last = module.__name__.rpartition(".")
            setattr(sys.modules[parent], last, module)

    return install


def parse_log_special(text: str, instance: Any) -> dict[str, str]:
    return dict.fromkeys(text.split(), "PASSED")


def test_other_logs_are_read_by_swebench(install_modules: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "swebench", None)
    with pytest.raises(ValueError, match="'parse_log_django' is one of swebench's: install swebench"):
        log_parser("parse_log_django")
    install_modules(log_parsers={"PARSER_REGISTRY": {"parse_log_special": parse_log_special}})
    assert log_parser("parse_log_special")("a b", None) == {"a": "PASSED", "b": "PASSED"}
    with pytest.raises(ValueError, match="no log parser 'parse_log_other'; it has: parse_log_special"):
        log_parser("parse_log_other")
    install_modules(log_parsers={"MAP_REPO_TO_PARSER": {"some/repo": parse_log_special}})
    assert log_parser("parse_log_special") is parse_log_special
    # If the parser fails on a log, there is no result.
    odd = task(("a",), log_parser="parse_log_odd")
    install_modules(log_parsers={"PARSER_REGISTRY": {"parse_log_odd": lambda text, _: text.split("FAIL:")[7]}})
    assert read_log(log("FAIL:"), MARK, odd) is None


def test_older_rows_are_completed_by_swebench_4(
    install_modules: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = task(("a",), instance_id="Some__repo-7", repo="some/repo", version="1.2")
    monkeypatch.setitem(sys.modules, "swebench", None)
    with pytest.raises(ValueError, match=r"'Some__repo-7' is of SWE-bench 4.*swebench==4.1.0"):
        complete(old)

    def script(row: dict[str, Any], specs: Any, environment: str, folder: str, base: str, patch: str) -> list[str]:
        assert (row["repo"], specs, environment, folder, base, patch) == (
            "some/repo",
            "SPECS",
            "testbed",
            "/testbed",
            "x",
            "x",
        )
        return [": '>>>>> Start Test Output'", "make test", ": '>>>>> End Test Output'"]

    constants = {"MAP_REPO_VERSION_TO_SPECS": {"some/repo": {"1.2": "SPECS"}}, "FAIL_ONLY_REPOS": {"an/other"}}
    install_modules(
        constants=constants,
        log_parsers={"MAP_REPO_TO_PARSER": {"some/repo": parse_log_special}},
        **{"test_spec.create_scripts": {"make_eval_script_list": script}},
    )
    new = with_tests(old)
    assert (
        new.eval_script.startswith("#!/bin/bash\nset -uxo pipefail\n: '>>>>> Start") and "make test" in new.eval_script
    )
    assert (new.log_parser, new.eval_type) == ("parse_log_special", "pass_and_fail")
    assert new.image == "swebench/sweb.eval.x86_64.some_1776_repo-7:latest"
    with pytest.raises(ValueError, match=r"does not know 'some/repo' in version '9'"):
        complete(replace(old, version="9"))


def test_rows_whose_tests_cannot_be_run_are_refused() -> None:
    with pytest.raises(ValueError, match="eval_script must have"):
        with_tests(task(("a",), log_parser="parse_log_pytest"))
    ours = task(("a",), log_parser="unittest")
    assert with_tests(ours) == ours
