"""Our metrics and our config through verl's ``Tracking``, into every backend that is installed here."""

import json
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from running import ROOT
from verl.utils.tracking import Tracking

from verl_comprl.config.composing import compose
from verl_comprl.errors import WaitTimeout
from verl_comprl.trainer.run_folder.tracking import METRICS_FILE, add_metrics_file

NAN, INF = math.nan, math.inf
SIZE = "comprl/bank/size"
METRICS: dict[str, Any] = {
    "comprl/guided/success": 0.5,
    "comprl/free/success": np.float32(0.25),
    "comprl/task/mini hack@2/free/success": np.float64(1.0),
    "comprl/failures/distill:TimeoutError": 2.0,
    SIZE: 7,
    "comprl/degraded": NAN,
    "comprl/gap": INF,
    "comprl/extractor/reward": -INF,
}


@pytest.fixture(scope="module")
def config() -> Any:
    """The whole config, as the trainer hands it over: nested, with lists, empty values and texts."""
    composed = compose(None, None, [])
    for key in ("actor_rollout_ref", "extractor"):
        composed[key].model.path = "a/model"
    return OmegaConf.to_container(composed, resolve=True)


def same(found: dict[str, float], expected: dict[str, Any]) -> bool:
    return found.keys() == expected.keys() and all(
        found[name] == value or (math.isnan(found[name]) and math.isnan(value)) for name, value in expected.items()
    )


@pytest.fixture
def track(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Any) -> Callable[[str], Tracking]:
    """Logs two steps to a backend; its files are below the test's folder."""
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "TENSORBOARD_DIR": "tensorboard",
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "WANDB_SILENT": "true",
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
        "VERL_FILE_LOGGER_PATH": "verl.jsonl",
    }.items():
        monkeypatch.setenv(name, value)

    def log(backend: str) -> Tracking:
        tracking = Tracking("project", "experiment", [backend], config)
        assert list(tracking.logger) == [backend]
        for step in (1, 2):
            tracking.log(METRICS | {SIZE: step}, step)
        return tracking

    return log


def test_tensorboard(track: Callable[[str], Tracking]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    track("tensorboard").finish()
    events = EventAccumulator("tensorboard").Reload()
    assert [event.value for event in events.Scalars(SIZE)] == [1, 2]
    assert same({name: events.Scalars(name)[0].value for name in events.Tags()["scalars"]}, METRICS | {SIZE: 1})


def without_headers(data: bytes, block: int = 1 << 15, header: int = 7) -> bytes:
    """Join the pieces of a file in the format of LevelDB's log, which cuts records at the end of a block."""
    place, pieces = header, []
    while place < len(data):
        if block - place % block < header:
            place += block - place % block
            continue
        length = int.from_bytes(data[place + 4 : place + 6], "little")
        pieces.append(data[place + header : place + header + length])
        place += header + length
    return b"".join(pieces)


def test_wandb_offline(track: Callable[[str], Tracking], tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb")
    tracking = track("wandb")
    shown = {name: value for name, value in dict(wandb.run.summary).items() if not name.startswith("_")}
    tracking.finish()
    assert same(shown, METRICS | {SIZE: 1})  # wandb closes a step when the next one begins
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    deadline = time.monotonic() + 30  # its own process writes
    while not all(name.encode() in without_headers(file.read_bytes()) for name in METRICS):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.backend
@pytest.mark.parametrize("store", ["sqlite", "folder"])
def test_mlflow(
    mlflow: Any, track: Callable[[str], Tracking], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    if store == "folder":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # from mlflow 3 on
    tracking = track("mlflow")
    run = mlflow.active_run().info.run_id
    tracking.finish()
    client = mlflow.MlflowClient()
    history = [point.value for point in client.get_metric_history(run, SIZE)]
    found = client.get_run(run)
    # mlflow takes no "@" in a name; verl replaces it. A database has no infinity, mlflow stores the largest float.
    expected = {name.replace("@", "_at_"): value for name, value in (METRICS | {SIZE: 2}).items()}
    assert history == [1, 2]
    if store == "sqlite":
        largest = 1.7976931348623157e308
        expected |= {name: math.copysign(largest, value) for name, value in expected.items() if math.isinf(value)}
    assert same(found.data.metrics, expected)
    assert found.data.params["comprl/watchdog/after"] == "600.0"


def test_file_console_and_our_own_file_beside_them(
    track: Callable[[str], Tracking], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    track("file").finish()
    lines = [json.loads(line) for line in (tmp_path / "verl.jsonl").read_text().splitlines()]
    assert [line["data"][SIZE] for line in lines] == [1, 2] and lines[0]["data"]["comprl/gap"] is None
    tracking = track("console")
    assert "comprl/guided/success:0.5" in capsys.readouterr().out
    said: list[str] = []
    for _ in range(2):  # before an evaluation, and before training
        add_metrics_file(tracking, tmp_path / "metrics.jsonl", ["console"], said.append)
    tracking.log(METRICS, 1)
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [
        {"step": 1, "data": lines[0]["data"] | {SIZE: 7}}
    ]
    assert said == []


def test_a_backend_that_verl_goes_on_without_is_said_once(tmp_path: Path) -> None:
    tracking: Any = Tracking("project", "experiment", ["console"])
    said: list[str] = []
    for _ in range(2):
        add_metrics_file(tracking, tmp_path / "metrics.jsonl", ["console", "mlflow"], said.append)
    assert list(tracking.logger) == [METRICS_FILE, "console"]
    assert len(said) == 1 and said[0].startswith("trainer.logger: mlflow could not be started")
    add_metrics_file(Tracking("project", "experiment", "console"), tmp_path / "metrics.jsonl", "console", said.append)
    assert len(said) == 1


def test_no_metric_is_a_folder_of_others_where_names_are_paths() -> None:
    """As in mlflow's folders: ``a`` could not be written beside ``a/b``."""
    rows = [line.split(" | ")[0] for line in (ROOT / "docs/metrics.md").read_text().splitlines() if line[:1] == "|"]
    names = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert len(names) > 50
    assert [(name, other) for name in names for other in names if other.startswith(f"{name}/")] == []


class Broken:
    """A backend whose disk is full."""

    def log(self, data: Any, step: int) -> None:
        raise OSError(28, "No space left on device")

    def finish(self) -> None:
        raise OSError(28, "No space left on device")


def test_a_backend_that_fails_costs_its_own_metrics_only(tmp_path: Path) -> None:
    tracking: Any = Tracking("project", "experiment", ["console"])
    tracking.logger = {"tensorboard": Broken(), **tracking.logger}
    said: list[str] = []
    add_metrics_file(tracking, tmp_path / "metrics.jsonl", ["console", "tensorboard"], said.append)
    for step in (1, 2):
        tracking.log(METRICS, step)
    tracking.finish()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    (text,) = said
    assert text.startswith("trainer.logger: tensorboard has failed") and "No space left on device" in text


def test_a_backend_that_is_given_up_while_it_finishes_is_not_waited_for_once_more(tmp_path: Path) -> None:
    def hang(exit_code: int) -> None:
        raise WaitTimeout("the metrics backends to finish", 120)

    tracking: Any = Tracking("project", "experiment", ["console"])
    tracking.logger = {"wandb": SimpleNamespace(log=lambda **_: None, finish=hang), **tracking.logger}
    add_metrics_file(tracking, tmp_path / "metrics.jsonl", ["console", "wandb"], pytest.fail)
    with pytest.raises(WaitTimeout):
        tracking.finish()


def test_tensorboard_whose_folder_is_lost_ends_no_run(
    track: Callable[[str], Tracking], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer's thread ends at the first error of the disk, and each later call raises that."""
    from tensorboard.summary.writer import event_file_writer

    tracking, said = track("tensorboard"), list[str]()
    add_metrics_file(tracking, tmp_path / "metrics.jsonl", ["tensorboard"], said.append)

    def fail(self: Any, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(event_file_writer.RecordWriter, "write", fail)
    deadline = time.monotonic() + 60
    step = 3
    while not said and time.monotonic() < deadline:
        tracking.log(METRICS, step)
        step += 1
    tracking.log(METRICS, step)
    tracking.finish()
    assert len(said) == 1 and "No space left on device" in said[0]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == step - 2
