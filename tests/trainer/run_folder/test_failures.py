"""Failed rollouts from worker to run folder, through a real TransferQueue."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import transfer_queue as tq
from omegaconf import OmegaConf
from running import undocumented

from verl_comprl.errors import Boundary, failing_at
from verl_comprl.record.reader import FAILURES
from verl_comprl.rollout.failures import PARTITION, FailureReporter
from verl_comprl.trainer.run_folder.failures import FailureLog

pytestmark = pytest.mark.run


@pytest.fixture(scope="module")
def queue() -> Iterator[None]:
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
        yield
        tq.close()
    finally:
        ray.shutdown()


def fail(session: int, error: Exception, boundary: Boundary = Boundary.ENVIRONMENT, **changes: Any) -> None:
    """Let a worker, always another one, report a failed rollout."""
    row = {"uid": "u", "session_id": session, "global_steps": 3, "data_source": "maze"} | changes
    try:
        with failing_at(boundary):
            raise error
    except Exception as failure:
        asyncio.run(FailureReporter().report(row, failure))


def failed(metrics: dict[str, float]) -> dict[str, float]:
    prefix = "comprl/rollouts/failed/"
    assert all(name.startswith(prefix) for name in metrics)
    return {name.removeprefix(prefix): value for name, value in metrics.items()}


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / FAILURES).read_text().splitlines()]


def test_records_counts_and_first_tracebacks(queue: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = FailureLog(tmp_path / "run")
    fail(0, KeyError("door"))
    fail(1, KeyError("window"))
    fail(2, KeyError("reply"), Boundary.SERVER, comprl_evaluation=True)
    metrics: dict[str, float] = {}
    log.collect(metrics)
    assert failed(metrics) == {"environment": 2.0, "server": 1.0, "manager": 0.0, "rollout": 0.0}
    assert undocumented(metrics) == []
    found = {line["id"]: line for line in lines(tmp_path / "run")}
    assert found["u_1"] == {
        "id": "u_1",
        "step": 3,
        "task": "maze",
        "environment": "",
        "boundary": "environment",
        "type": "KeyError",
        "text": "'window'",
        "evaluation": False,
    }
    assert found["u_2"]["boundary"] == "server" and found["u_2"]["evaluation"]
    # Each worker sent a traceback, one of each kind is printed.
    printed = capsys.readouterr().out
    assert printed.count("Traceback (most recent call last)") == 2 and printed.count("    raise error\n") == 2

    # An evaluation at the end of the step adds to its counts; nothing is counted or written twice.
    fail(3, KeyError("lamp"), comprl_evaluation=True)
    log.collect(metrics)
    assert failed(metrics)["environment"] == 3.0 and len(lines(tmp_path / "run")) == 4
    later: dict[str, float] = {}
    log.collect(later)
    assert set(failed(later).values()) == {0.0}
    assert "Traceback" not in capsys.readouterr().out


def test_a_run_in_which_nothing_fails_has_no_file(queue: None, tmp_path: Path) -> None:
    log, error = FailureLog(tmp_path / "run"), RuntimeError("no batch")
    log.collect({})
    log.explain(error)
    assert not (tmp_path / "run").exists() and not hasattr(error, "__notes__")


def test_a_run_that_ends_with_an_error_says_what_failed_before(queue: None, tmp_path: Path) -> None:
    log, error = FailureLog(tmp_path), RuntimeError("no batch")
    fail(0, KeyError("door"))
    log.collect({})
    fail(1, KeyError("door"))
    fail(2, OSError(), Boundary.SERVER)
    log.explain(error)
    assert len(lines(tmp_path)) == 3
    (note,) = error.__notes__
    assert "2 at environment, 1 at server" in note and str(tmp_path / FAILURES) in note


def test_a_record_that_is_being_written_is_left_for_the_next_time(queue: None, tmp_path: Path) -> None:
    client = tq.get_client()
    client._run_coroutine(client.async_kv_retrieve_meta(keys=["u_0"], partition_id=PARTITION, create=True))
    log = FailureLog(tmp_path)
    metrics: dict[str, float] = {}
    log.collect(metrics)
    assert set(failed(metrics).values()) == {0.0}
    fail(0, KeyError("door"))
    log.collect(metrics)
    assert failed(metrics)["environment"] == 1.0


def test_verls_replay_buffer_is_not_disturbed(queue: None) -> None:
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    buffer = ReplayBuffer("sync", OmegaConf.create({}), None, "drop", OmegaConf.create({}), poll_interval=0.01)
    fail(1, KeyError("door"))
    tq.kv_put(key="u", partition_id="train", tag={"is_prompt": True, "status": "finished", "global_steps": 3})
    tq.kv_put(key="u_0_0", partition_id="train", tag={"status": "success", "seq_len": 5})
    batch, _ = buffer.sample(global_steps=3, partition_id="train", batch_size=1)
    assert batch.keys == ["u_0_0"]
    assert list(tq.kv_list(PARTITION)[PARTITION]) == ["u_1"], "what failed is still there"
    tq.kv_clear(["u_1"], PARTITION)
