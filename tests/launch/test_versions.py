"""Digest of our own source, by which nodes that differ are told."""

from pathlib import Path

import pytest

from verl_comprl.launch import versions
from verl_comprl.launch.versions import SOURCE, installed_versions


def digest() -> str:
    return installed_versions()[SOURCE]


@pytest.mark.parametrize("file", ["env_adapters/maze.py", "verl_comprl/config/arm/mine.yaml"])
def test_every_file_of_both_packages_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    """An environment with another reward on one node would mix two rewards in a batch."""
    for package in ("env_adapters", "verl_comprl/launch", "verl_comprl/config/arm"):
        (tmp_path / package).mkdir(parents=True)
    monkeypatch.setattr(versions, "__file__", str(tmp_path / "verl_comprl/launch/versions.py"))
    before = digest()
    (tmp_path / file).write_text("reward = 1")
    first = digest()
    (tmp_path / file).write_text("reward = 2")
    assert len({before, first, digest()}) == 3
    (tmp_path / "env_adapters/__pycache__").mkdir()
    (tmp_path / "env_adapters/__pycache__/maze.pyc").write_text("of this machine")
    (tmp_path / file).write_text("reward = 1")
    assert digest() == first
