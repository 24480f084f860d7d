"""Decides which files a patch may change.

Owns the line between product code, which an agent's patch changes, and tests, the configuration of test runners and
code that Python runs unasked, which stay as the task has them.
"""

import re
import sys
from collections.abc import Iterable

from env_adapters.swebench.instances import Instance

_PATCHED = re.compile(r"^diff --git a/(\S+) b/(\S+)$", re.MULTILINE)
_DOTTED = re.compile(r"\w+(\.\w+)+")
# SWE-bench divides a pull request by these words in a path: with one it is part of the test patch.
_TEST_WORDS = {"test", "tests", "testing", "e2e"}
# Files that configure test runs, run at an installation or at Python's start, or change what git writes to files.
_STEERING = re.compile(
    r"(conftest|sitecustomize|usercustomize)\..*|\.?pytest\.(ini|toml)|tox\.(ini|toml)|setup\.(cfg|py)|pyproject\.toml"
    r"|(unittest|nose2?)\.cfg|\.noserc|\.stestr\.conf|noxfile\.py|\.coveragerc|\.gitattributes|\.gitmodules"
    r"|.*\.(pth|pyc|pyo|egg-link)",
    re.IGNORECASE,
)
_STEERING_FOLDERS = re.compile(r"__pycache__|(site|user)customize|conftest|.*\.(egg-info|dist-info)", re.IGNORECASE)
# Modules that test runs import before product code: a new one beside the product would replace them.
_RUNNERS = {
    *("_pytest", "coverage", "hypothesis", "mock", "nose", "nose2", "py", "pytest", "tox", "xdist"),
    *("apipkg", "atomicwrites", "attr", "attrs", "exceptiongroup", "execnet", "importlib_metadata", "iniconfig"),
    *("more_itertools", "packaging", "pathlib2", "pluggy", "pygments", "six", "toml", "tomli", "typing_extensions"),
    *("wcwidth", "zipp"),
}
# The sandbox's Python may be older than this one, with more modules of its own.
_REMOVED = {
    *("asynchat", "asyncore", "binhex", "distutils", "formatter", "imp", "macpath", "parser", "smtpd", "symbol"),
    *("aifc", "audioop", "cgi", "cgitb", "chunk", "crypt", "imghdr", "mailcap", "msilib", "nis", "nntplib", "pipes"),
    *("ossaudiodev", "sndhdr", "spwd", "sunau", "telnetlib", "uu", "xdrlib", "lib2to3"),
}
_FOREIGN = sys.stdlib_module_names | _REMOVED | _RUNNERS
_ROOTS = {"lib", "src"}


def protected(paths: Iterable[str], instance: Instance, existing: Iterable[str]) -> list[str]:
    """Return those of the paths at which a patch is reverted.

    Files that the gold patch changes are product code, whatever their names.

    Args:
        paths: Paths that the patch changes.
        instance: The task.
        existing: Paths of all files of the base commit.
    """
    gold, files, existing = patched(instance.patch), test_files(instance), set(existing)
    # Python takes `test_x/__init__.py` or a compiled `test_x.so` before `test_x.py`.
    tests = tuple(f"{name.rpartition('.py')[0] or name}{end}" for name in files for end in ("/", "."))
    # pytest imports from the folder of a test file, too, unless it is a package.
    folders = {name.rpartition("/")[0] for name in files}
    roots = _ROOTS | {folder for folder in folders if folder and f"{folder}/__init__.py" not in existing}
    known = {module for path in existing for module in _modules(path, roots)}
    return [
        path
        for path in paths
        if path not in gold and (_steers(path) or path.startswith(tests) or _shadows(path, roots, known))
    ]


def patched(patch: str) -> set[str]:
    """Return the paths in the headers of a trusted patch."""
    return {name for names in _PATCHED.findall(patch) for name in names}


def test_files(instance: Instance) -> list[str]:
    """Return the files that the tests may be in, those that do not exist included."""
    named = {name for test in instance.FAIL_TO_PASS + instance.PASS_TO_PASS for name in _files_of(test)}
    return sorted(named | patched(instance.test_patch))


def _steers(path: str) -> bool:
    *folders, name = path.split("/")
    words = set(re.split(r"[/_. ]", path.lower()))
    in_steering_folder = any(_STEERING_FOLDERS.fullmatch(folder) for folder in (*folders, name))
    return bool(words & _TEST_WORDS or _STEERING.fullmatch(name) or in_steering_folder)


def _modules(path: str, roots: set[str]) -> set[tuple[str, str]]:
    """Return the folders from which a file might be imported, each with the top module in which it would be found."""
    inside = {"", *(root for root in roots if path.startswith(f"{root}/"))}
    return {(root, path.removeprefix(f"{root}/").partition("/")[0].partition(".")[0]) for root in inside}


def _shadows(path: str, roots: set[str], known: set[tuple[str, str]]) -> bool:
    """Return whether a new file would replace a module that is not of the repository."""
    return any(
        name in _FOREIGN or name.startswith("pytest_")
        for root, name in _modules(path, roots)
        if (root, name) not in known
    )


def _files_of(test: str) -> list[str]:
    """Return the files that a test's name, such as ``a/b.py::test`` or ``tests.test_b.Case.test``, may refer to."""
    path, colons, _ = test.partition("::")
    if colons:
        return [path]
    if not _DOTTED.fullmatch(test):
        return []
    parts = test.split(".")
    modules = ["/".join(parts[: index + 1]) for index, part in enumerate(parts[:-1]) if "test" in part.lower()]
    return [f"{module}{end}" for module in modules for end in (".py", "/__init__.py")]
