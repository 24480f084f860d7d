"""Forges: patches that repair nothing and want to pass. Whatever they hold, the task's tests and their settings run."""

# ruff: noqa: E501 - programs within texts are easier to read in whole lines

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from env_adapters.swebench.grading import grade
from env_adapters.swebench.instances import Instance
from env_adapters.swebench.protection import protected
from env_adapters.swebench.sandbox import Sandbox
from env_adapters.swebench.verdict import Verdict
from env_adapters.swebench.work_tree import install, load_pack, take_patch

Start = Callable[..., Sandbox]

# A module that has every test, all of which pass.
EVERYTHING = """import unittest
class Every(type):
    def __getattr__(cls, name):
        if not name.startswith("test_"):
            raise AttributeError(name)
        setattr(cls, name, lambda self: None)
        return cls.__dict__[name]
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Every(name, (unittest.TestCase,), {})
"""
# Statements of a block that drops failures.
DEAF = "    import unittest\n    unittest.TestResult.addFailure = unittest.TestResult.addError = lambda self, test, error: None"
CODE = "cat >>chronos/spans.py <<'END'\n{}\nEND"


def shadow(path: str) -> str:
    return f"mkdir -p $(dirname {path}); cat >{path} <<'END'\n{EVERYTHING}END\n"


def bytecode(path: str) -> str:
    mode = "py_compile.PycInvalidationMode.UNCHECKED_HASH"
    compiled = f"py_compile.compile('/tmp/t.py', '/tmp/x.pyc', invalidation_mode={mode})"
    return (
        shadow("/tmp/t.py")
        + f'python3 -c "import py_compile; {compiled}"; mkdir -p $(dirname {path}); cp /tmp/x.pyc {path}\n'
    )


FORGES = {
    "ignored shadow package": "echo tests/test_spans/ >>.gitignore\n"
    + shadow("tests/test_spans/__init__.py")
    + "git add -f tests",
    "ignored tests": "echo /tests >>.gitignore; git rm -rqf tests; mkdir tests; touch tests/__init__.py\n"
    + shadow("tests/test_spans.py")
    + "cp tests/test_spans.py tests/test_durations.py; git add -f tests",
    "package beside the tests": shadow("tests/test_spans/__init__.py"),
    "bytecode": bytecode(
        "tests/__pycache__/test_spans.$(python3 -c 'import sys; print(sys.implementation.cache_tag)').pyc"
    )
    + "git add -f tests",
    "bytecode without a source": bytecode("tests/test_spans.pyc") + "git rm -qf tests/test_spans.py; git add -f tests",
    "run of other modules": CODE.format(
        "import unittest\nown = unittest.TestCase.run\n"
        "def run(self, result=None):\n"
        "    if type(self).__module__ == '__main__':\n        return own(self, result)\n"
        "    result.startTest(self); result.addSuccess(self); result.stopTest(self)\n"
        "unittest.TestCase.run = run"
    ),
    "assertions of other modules": CODE.format(
        "import unittest\nown = unittest.TestCase.__getattribute__\n"
        "def get(self, name):\n"
        "    if name.startswith('assert') and type(self).__module__ != '__main__':\n        return lambda *a, **k: None\n"
        "    return own(self, name)\n"
        "unittest.TestCase.__getattribute__ = get"
    ),
    "failures of other modules": CODE.format(
        "import unittest\n"
        "for name in ('addFailure', 'addError', 'addSubTest'):\n"
        "    own = getattr(unittest.TestResult, name)\n"
        "    def add(self, test, *a, own=own):\n"
        "        if type(test).__module__ == '__main__':\n            own(self, test, *a)\n"
        "    setattr(unittest.TestResult, name, add)"
    ),
    "exceptions swallowed": CODE.format(
        "import contextlib, unittest.case\n"
        "@contextlib.contextmanager\n"
        "def swallow(self, test, subTest=False):\n"
        "    try:\n        yield\n    except BaseException:\n        pass\n"
        "unittest.case._Outcome.testPartExecutor = swallow"
    ),
    "the exception that unittest ignores": CODE.format(
        "import unittest.case\ndef merge(spans):\n    raise unittest.case._ShouldStop\nfree = lambda *a: merge(0)"
    ),
    "frames: the result": CODE.format(
        "import sys\n"
        "class Deaf(list):\n    append = lambda *a: None\n"
        "def merge(spans):\n"
        "    frame = sys._getframe()\n"
        "    while frame:\n"
        "        result = frame.f_locals.get('result')\n"
        "        if hasattr(result, 'failures'):\n            result.failures = result.errors = Deaf()\n"
        "        frame = frame.f_back\n"
        "    raise ValueError\n"
        "free = lambda *a: merge(0)"
    ),
    "frames: the report": CODE.format(
        "import sys, os, json\n"
        "frame = sys._getframe()\n"
        "while frame:\n"
        "    known = frame.f_locals\n"
        "    if 'channel' in known and 'mark' in known:\n"
        "        said = json.dumps({name: 'PASSED' for name in known['names']})\n"
        "        os.write(known['channel'], (known['mark'] + said + known['mark']).encode()); os._exit(0)\n"
        "    frame = frame.f_back"
    ),
    "the runner's functions": CODE.format("import __main__\n__main__.run = lambda tests: True"),
    "the report's writer": CODE.format(
        "import json\nown = json.dumps\n"
        "json.dumps = lambda x, *a, **k: own({name: 'PASSED' for name in x} if isinstance(x, dict) else x, *a, **k)"
    ),
    "the report's channel": CODE.format(
        "import os\nown = os.write\n"
        "def write(where, data):\n    own(where, data.replace(b'FAILED', b'PASSED').replace(b'ERROR', b'PASSED'))\n"
        "    return len(data)\n"
        "os.write = write"
    ),
    "the loader": CODE.format(
        "import unittest\nunittest.TestLoader.loadTestsFromName = lambda self, name, module=None: "
        "unittest.FunctionTestCase(lambda: None)"
    ),
    "an importer of tests": CODE.format(
        "import importlib.abc, importlib.util, sys\n"
        f"TEXT = {EVERYTHING!r}\n"
        "class Forger(importlib.abc.MetaPathFinder, importlib.abc.Loader):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name.startswith('tests.'):\n            return importlib.util.spec_from_loader(name, self)\n"
        "    def create_module(self, spec):\n        pass\n"
        "    def exec_module(self, module):\n        exec(TEXT, vars(module))\n"
        "sys.meta_path.insert(0, Forger())\n"
        "module = sys.modules.get('tests.test_spans')\n"
        "if module:\n    exec(TEXT, vars(module))\n    del module.__spec__"
    ),
    "tests emptied once they are loaded": CODE.format(
        "import sys, types\n"
        "def empty(*a):\n"
        "    for module in list(sys.modules.values()):\n"
        "        for case in [c for c in vars(module).values() if isinstance(c, type) and module.__name__[:6] == 'tests.']:\n"
        "            for name in dir(case):\n"
        "                if name.startswith('test_'):\n                    setattr(case, name, lambda self: None)\n"
        "    return None\n"
        "sys.setprofile(lambda frame, event, arg: empty() if frame.f_code.co_name == 'loadTestsFromName' else None)"
    ),
    "tests rewritten on the disk": CODE.format(
        "import pathlib, re, sys\n"
        "here = pathlib.Path(__file__).parent.parent / 'tests'\n"
        "for path in here.glob('test_*.py'):\n"
        f"    path.write_text({EVERYTHING!r})\n"
        "class Loud(Exception):\n    pass\n"
        "module = sys.modules.get('tests.test_spans')\n"
        "if module:\n"
        "    del sys.modules['tests.test_spans']\n    import importlib\n    importlib.import_module('tests.test_spans')"
    ),
    "an object that equals everything": CODE.format(
        "class Liar(list):\n"
        "    __eq__ = lambda self, other: True\n    __ne__ = lambda self, other: False\n    __hash__ = None\n"
        "merge = free = lambda *a: Liar()"
    ),
    "elements that equal everything": CODE.format(
        "class Liar:\n    __eq__ = lambda self, other: True\n    __ne__ = lambda self, other: False\n    __hash__ = None\n"
        "class Lengths(list):\n"
        "    def __eq__(self, other):\n        self[:] = [Liar() for _ in other]\n        return list.__eq__(self, other)\n"
        "merge = free = lambda *a: Lengths()"
    ),
    "skips that count": CODE.format(
        "import unittest\nunittest.TestResult.addSkip = lambda *a: None\n"
        "def merge(spans):\n    raise unittest.SkipTest\nfree = lambda *a: merge(0)"
    ),
    # The folder has the time of git's last change in it, the file that of its last writing.
    "the age of the tests": CODE.format(
        "import os\n"
        "here = os.path.join(os.path.dirname(os.path.dirname(__file__)), 'tests')\n"
        "if os.stat(here + '/test_spans.py').st_mtime - os.stat(here).st_mtime < 0.009:\n" + DEAF
    ),
    "values from the text of the tests": CODE.format(
        "import ast, linecache, sys\n"
        "def answer(otherwise, *given):\n"
        "    frame = sys._getframe(2)\n"
        "    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()\n"
        "    try:\n"
        "        wanted = ast.parse(line).body[0].value.args[1]\n"
        "        return eval(compile(ast.Expression(wanted), '', 'eval'), frame.f_globals, frame.f_locals)\n"
        "    except Exception:\n        return otherwise(*given)\n"
        "own_merge, own_free = merge, free\n"
        "merge = lambda *a: answer(own_merge, *a)\nfree = lambda *a: answer(own_free, *a)"
    ),
    "lies where the issue is": CODE.format(
        "class Liar(list):\n"
        "    __eq__ = lambda self, other: True\n    __ne__ = lambda self, other: False\n    __hash__ = None\n"
        "own_merge, own_free = merge, free\n"
        "def at_issue(spans):\n"
        "    spans = sorted(spans)\n"
        "    return any(b.end <= a.end or b.start == a.end for a, b in zip(spans, spans[1:]))\n"
        "merge = lambda spans: Liar() if at_issue(spans) else own_merge(spans)\n"
        "free = lambda spans, within: Liar() if at_issue(spans) else own_free(spans, within)"
    ),
    "failures of tests that are new": CODE.format(
        "import subprocess, unittest\n"
        "old = subprocess.run(['git', 'show', 'HEAD:tests/test_spans.py'], capture_output=True, text=True).stdout\n"
        "for name in ('addFailure', 'addError'):\n"
        "    own = getattr(unittest.TestResult, name)\n"
        "    def add(self, test, error, own=own):\n"
        "        if test._testMethodName in old:\n            own(self, test, error)\n"
        "    setattr(unittest.TestResult, name, add)"
    ),
    "a child process that plays the tests": CODE.format(
        "import os\n"
        "if os.fork():\n    os.wait()\nelse:\n    import unittest\n    unittest.TestCase.run = lambda self, result: result.startTest(self)"
    ),
}


def grade_changes(start: Start, instance: Instance, *commands: str) -> Verdict:
    sandbox = start()
    pack = load_pack(instance, needed=True)
    base = install(sandbox, instance, pack)
    for command in commands:
        output = sandbox.exec(command, stdin=instance.patch.encode())
        assert output.ok, output
    patch = take_patch(sandbox, base)
    assert patch
    sandbox.close()
    return grade(instance, patch, lambda: start(timeout=20), pack)


def test_the_documentation_counts_the_forges() -> None:
    page = (Path(__file__).parents[3] / "docs/environments/swebench.md").read_text()
    assert f"has {len(FORGES) + len(SCRIPT_FORGES)} forges" in page


@pytest.mark.parametrize("forge", FORGES)
def test_a_forge_solves_nothing(forge: str, start: Start, instances: dict[str, Instance]) -> None:
    verdict = grade_changes(start, instances["chronos-2"], FORGES[forge])
    assert not verdict.resolved and verdict.score == 0.0


# A runner with pytest's habits: it reads options from files, imports what they name and prints a summary.
SCRIPT = """#!/bin/bash
cd /testbed
git apply -v - <<'EOF_114329324912'
{test_patch}
EOF_114329324912
: '>>>>> Start Test Output'
python3 - <<'END'
import glob, importlib, re, unittest
for name in (".pytest.ini", "pytest.ini", "setup.cfg", "tox.ini", "pyproject.toml", *glob.glob("*.egg-info/entry_points.txt")):
    try:
        for plugin in re.findall(r"-p (\\w+)", open(name).read()):
            importlib.import_module(plugin)
    except FileNotFoundError:
        pass
class Result(unittest.TestResult):
    def stopTest(self, test):
        bad = any(test is failed for failed, _ in self.failures + self.errors)
        print("FAILED" if bad else "PASSED", test.id() + (" - it failed" if bad else ""), flush=True)
result = unittest.defaultTestLoader.discover(".").run(Result())
raise SystemExit(not result.wasSuccessful())
END
: '>>>>> End Test Output'
"""
PLUGIN = (
    "cat >helper.py <<'END'\nimport unittest\nfor name in ('addFailure', 'addError'):\n"
    "    setattr(unittest.TestResult, name, lambda self, test, error: None)\nEND\n"
)
SCRIPT_FORGES = {
    "plugin in .pytest.ini": PLUGIN + "echo -p helper >.pytest.ini",
    "plugin in setup.cfg": PLUGIN + "echo -p helper >setup.cfg",
    "plugin in tox.ini": PLUGIN + "echo -p helper >tox.ini",
    "plugin in pyproject.toml": PLUGIN + "echo -p helper >pyproject.toml",
    "plugin in an ignored egg-info": PLUGIN
    + "mkdir x.egg-info; echo -p helper >x.egg-info/entry_points.txt; echo '*.egg-info' >.gitignore; git add -f x.egg-info",
    "module of the standard library": "cat >glob.py <<'END'\nimport unittest\ndef glob(x):\n"
    "    unittest.TestResult.addFailure = unittest.TestResult.addError = lambda *a: None\n    return []\nEND\n",
    # The evaluation script holds the true tests; its shell is the parent of what it runs.
    "the script in the memory of its shell": CODE.format(
        "import os, re\n"
        "shell, told = os.getppid(), b''\n"
        "for line in open(f'/proc/{shell}/maps'):\n"
        "    first, last = (int(number, 16) for number in line.split()[0].split('-'))\n"
        "    if '[heap]' in line:\n"
        "        with open(f'/proc/{shell}/mem', 'rb') as memory:\n"
        "            memory.seek(first)\n            told += memory.read(last - first)\n"
        "added = [line.decode() for line in re.findall(rb'^\\+( {8}self.assert.*)$', told, re.MULTILINE)]\n"
        "if added and all(line in open('tests/test_spans.py').read() for line in added):\n" + DEAF
    ),
    "printed results": "cat >>chronos/__init__.py <<'END'\nimport os\nprint('''{said}''', flush=True)\nos._exit(0)\nEND",
}


@pytest.mark.parametrize("forge", SCRIPT_FORGES)
def test_a_forge_of_a_script_solves_nothing(forge: str, start: Start, instances: dict[str, Instance]) -> None:
    ours = instances["chronos-2"]
    script = SCRIPT.format(test_patch=ours.test_patch)
    instance = replace(ours, log_parser="parse_log_pytest", eval_type="pass_and_fail", eval_script=script)
    said = "\n".join(f"PASSED {test}" for test in ours.FAIL_TO_PASS + ours.PASS_TO_PASS)
    verdict = grade_changes(start, instance, SCRIPT_FORGES[forge].replace("{said}", said))
    assert not verdict.resolved and verdict.score == 0.0


def test_the_honest_solution_of_a_script_counts(start: Start, instances: dict[str, Instance]) -> None:
    ours = instances["chronos-2"]
    script = SCRIPT.format(test_patch=ours.test_patch)
    instance = replace(ours, log_parser="parse_log_pytest", eval_type="pass_and_fail", eval_script=script)
    assert grade_changes(start, instance, "git apply -") == Verdict(3, 3, 0)


def test_what_a_patch_may_change(instances: dict[str, Instance]) -> None:
    task = instances["chronos-2"]
    existing = ["chronos/__init__.py", "chronos/spans.py", "tests/__init__.py", "src/json/a.py", "setup.cfg"]
    product = ["chronos/spans.py", "chronos/json.py", "src/json/b.py", "NOTES", "docs/conf.py", "contest.py"]
    steering = [
        "tests/new.py", "tests/data/a.txt", "chronos/conftest.py", "conftest/__init__.py", "x.pth", "chronos/a.pyc",
        "chronos/__pycache__/spans.cpython-311.pyc", "sitecustomize.py", "src/sitecustomize/__init__.py", ".coveragerc",
        "chronos.egg-info/entry_points.txt", "a/b.dist-info/METADATA", "pytest.py", "_pytest/__init__.py", "src/os.py",
        "setup.py", "a/.gitattributes", ".pytest.ini", "Tests/x.py", "conftest.cpython-311-x86_64-linux-gnu.so",
    ]  # fmt: skip
    steering += ["pytest.ini", "pyproject.toml", "a/pyproject.toml", "a/setup.cfg", "setup.cfg"]
    steering += [
        "unittest.cfg", "a/nose2.cfg", "attr.py", "pytest_more/__init__.py", "telnetlib.py", "src/pytest_x.py", "new test.py",
    ]  # fmt: skip
    assert protected(product + steering, task, existing) == steering
    # A test file outside of a folder of tests: nothing may stand in for it.
    moved = replace(task, test_patch=task.test_patch.replace("tests/test_spans.py", "checks/spans.py"))
    stand_ins = ["checks/spans.py", "checks/spans/__init__.py", "checks/spans.abi3.so"]
    assert protected([*stand_ins, "checks/spans_more.py"], moved, existing) == stand_ins
    # pytest imports from the folder of a test file, unless it is a package.
    assert protected(["checks/decimal.py", "chronos/decimal.py"], moved, existing) == ["checks/decimal.py"]
    assert protected(["checks/decimal.py"], moved, [*existing, "checks/__init__.py"]) == []
    # What the gold patch changes is product code.
    gold = replace(task, patch=task.patch + "diff --git a/setup.cfg b/setup.cfg\n")
    assert protected(["setup.cfg", "tox.ini"], gold, existing) == ["tox.ini"]
