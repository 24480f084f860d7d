"""Files of runs, and what is wrong with some."""

import json
from pathlib import Path

import pytest

from verl_comprl.config.reading import ConfigError
from verl_comprl.sweep.runs import Run
from verl_comprl.sweep.runs_file import read_runs

RUNS = [{"name": "one", "overrides": ["arm=baseline", "data.seed=1"]}, {"name": 2, "config_name": "other"}]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("runs.json", json.dumps(RUNS)),
        ("runs.yaml", "- name: one\n  overrides: [arm=baseline, data.seed=1]\n- {name: 2, config_name: other}\n"),
    ],
)
def test_a_file_of_runs(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert read_runs(tmp_path / name) == [Run("one", ("arm=baseline", "data.seed=1")), Run("2", (), "other")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("runs: []", "must be a list of runs"),
        ("- [arm=baseline]", "is not a run; allowed: name (required), overrides, config_name"),
        ("- overrides: []", "is not a run"),
        ("- {name: a, override: [x=1]}", "is not a run"),
        ("- {name: null, overrides: []}", "is not a run"),
        ("5", "cannot be read"),
        ("", "must be a list of runs"),
        ("- name: a\n  overrides: [arm=baseline\n", "line 3"),
        ("- {name: a}\n\t- b", "cannot be read: while scanning"),
        ("- name: ${", "cannot be read: no viable alternative"),
        ("- {name: a, overrides: arm=baseline}", "run a: overrides must be a list of key=value, such as [arm=baseline"),
        ("- {name: a, overrides: {arm: baseline}}", "it is {'arm': 'baseline'}"),
        ("- {name: a, overrides: [arm: baseline]}", "it is [{'arm': 'baseline'}]"),
        ("- {name: a, overrides: ''}", "it is ''"),
        ("- {name: a, config_name: [b]}", "run a: config_name must be the name of a recipe; it is ['b']"),
    ],
)
def test_a_file_that_has_something_else(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "runs.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_runs(tmp_path / "runs.yaml")
    assert str(caught.value).startswith(str(tmp_path / "runs.yaml")) and message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"), [("runs.json", b"[{"), ("runs.yaml", b"- name: \xff"), ("none.yaml", None)]
)
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_runs(tmp_path / name)
    assert str(caught.value).startswith(f"{tmp_path / name} cannot be read: ") and "\n" not in str(caught.value)
