"""Runs are grouped by arm; what should not be averaged is named."""

import re
from pathlib import Path

import pytest
import yaml
from run_folders import write_run

from verl_comprl.curves.groups import group_runs
from verl_comprl.curves.run import open_run


def test_runs_of_an_arm_are_seeds_of_one_thing(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / str(seed), {}, seed=seed) for seed in (1, 2)]
    folders += [write_run(tmp_path / "b", {}, arm="self_imitation"), folders[0]]
    groups = group_runs([open_run(folder) for folder in folders])
    assert [(group.name, len(group.runs), group.is_reference) for group in groups] == [
        ("complementary", 2, False),
        ("self imitation", 1, True),
    ]
    assert groups[0].differences() == []  # seeds and paths may differ


def test_runs_of_other_tasks_or_models_are_named(tmp_path: Path) -> None:
    """A folder of their own is no other task: the runs of a world have theirs, and each run has its bank's."""
    folders = [write_run(tmp_path / name, {}, bank={"path": f"/runs/{name}/bank"}) for name in "abc"]
    for folder, train, model in zip(folders, ("room", "room", "maze"), ("small", "large", "large"), strict=True):
        config = yaml.safe_load((folder / "config.yaml").read_text())
        config["data"]["train_files"] = [f"{folder}/{train}.parquet", f"{folder}/more.parquet"]
        config["trainer"] |= {"default_local_dir": str(folder)}
        config["extractor"] = {"model": {"path": f"/models/{model}"}}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
    runs = [open_run(folder) for folder in folders]
    assert group_runs(runs[:2])[0].differences() == ["extractor.model.path"]
    assert group_runs(runs[1:])[0].differences() == ["data.train_files"]


def test_other_settings_can_tell_groups_apart(tmp_path: Path) -> None:
    runs = [open_run(write_run(tmp_path / str(size), {}, bank={"capacity": size})) for size in (8, 16)]
    assert group_runs(runs)[0].differences() == ["comprl.bank.capacity"]
    groups = group_runs(runs, ["comprl.arm", "comprl.bank.capacity"])
    assert [group.name for group in groups] == ["complementary, capacity 8", "complementary, capacity 16"]
    with pytest.raises(ValueError, match=r"no setting 'comprl\.size'"):
        group_runs(runs, ["comprl.size"])
    with pytest.raises(ValueError, match=r"no setting 'comprl\.bank\.capcity'; did you mean comprl\.bank\.capacity\?$"):
        group_runs(runs, ["comprl.bank.capcity"])


def test_a_section_makes_no_groups(tmp_path: Path) -> None:
    nested = {"capacity": 8, "scope": "task", "more": {"x": 1}, "empty": {}}
    run = open_run(write_run(tmp_path / "run", {}, bank=nested))
    message = "comprl.bank is a section, not a setting; its settings: comprl.bank.capacity, comprl.bank.scope"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        group_runs([run], ["comprl.arm", "comprl.bank"])
    with pytest.raises(ValueError, match=r"is a section, not a setting$"):
        group_runs([run], ["comprl.bank.empty"])
