"""Snapshots as Hugging Face datasets: loading, the card, downloads from the hub."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from verl_comprl.experience import Experience, SnapshotError, TaskUsage
from verl_comprl.experience.transfer.snapshot import read_snapshot, snapshot_folder, write_snapshot

EMBEDDING = {"model": "a/b", "dimension": 2}
ENTRIES = [
    Experience(
        id="a", title="t", content="c\u2028é", tasks=("x", "y"), parents=("p", "q"), created_at=0.1, source_success=True
    ),
    Experience(
        id="b",
        title="",
        content="c",
        tasks=("y",),
        usage=(TaskUsage(task="y", uses=2, successes=1), TaskUsage(task="z", asked=1)),
        last_trained_step=3,
        quarantined="bad",
    ),
]
VECTORS = np.array([[1, 0], [0, 1]], np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_snapshot(tmp_path / "bank", ENTRIES, VECTORS, EMBEDDING)
    return tmp_path / "bank"


def test_load_dataset_reads_the_folder(folder: Path, tmp_path: Path) -> None:
    import datasets

    loaded = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))
    rows = loaded["train"].to_list()
    assert list(loaded) == ["train"] and [Experience.model_validate(row) for row in rows] == ENTRIES
    features = loaded["train"].features
    assert features["retrievals"].dtype == "int64" and features["created_at"].dtype == "float64"
    assert features["source_success"].dtype == "bool" and features["parents"].feature.dtype == "string"


def test_the_card_describes_the_bank_and_warns(folder: Path) -> None:
    text = (folder / "README.md").read_text()
    assert "2 entries (1 quarantined) of 2 tasks in 0 environments" in text
    assert '"model": "a/b"' in text and "schema version (2)" in text and "untrusted" in text


def test_the_card_may_be_edited(folder: Path) -> None:
    (folder / "README.md").write_text("mine")
    assert read_snapshot(folder, EMBEDDING).entries == ENTRIES


def test_reading_a_snapshot_leaves_no_thread_behind(folder: Path) -> None:
    # A thread that still holds the file's bytes when Python exits aborts the process; this happened in 3 of 400 runs.
    program = """if True:
        import os, sys
        from pathlib import Path
        import pyarrow.parquet
        from verl_comprl.experience.transfer.snapshot import read_snapshot
        before = len(os.listdir("/proc/self/task"))
        assert read_snapshot(Path(sys.argv[1]), None).entries
        print(len(os.listdir("/proc/self/task")) - before)
    """
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", program, folder],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert done.stdout == "0\n"


def test_a_snapshot_is_downloaded_from_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked = []

    def download(repository: str, **options: object) -> str:
        asked.append((repository, options["repo_type"]))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert read_snapshot(snapshot_folder("hf://datasets/user/name"), None).entries == ENTRIES
    assert asked == [("user/name", "dataset")]


@pytest.mark.parametrize("address", ["hf://user/name", "hf://datasets/name", "hf://datasets/a/b/c"])
def test_another_address_is_refused(address: str) -> None:
    with pytest.raises(SnapshotError, match="is named hf://datasets/<user>/<name>, got"):
        snapshot_folder(address)


def test_a_download_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(SnapshotError, match="hf://datasets/nobody/nothing could not be downloaded: ") as caught:
        snapshot_folder("hf://datasets/nobody/nothing")
    assert "\n" not in str(caught.value)
    with pytest.raises(SnapshotError, match="could not be downloaded"):
        snapshot_folder("hf://datasets/a b/--")
