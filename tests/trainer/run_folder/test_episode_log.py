"""Records of episodes from TransferQueue to the run's folder: which, when, and with what the trainer knows of them."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from episode_queue import Queue  # pyright: ignore[reportMissingImports]
from run_folder_page import EPISODE, rows
from running import undocumented

from verl_comprl.config.tree import RecordConfig
from verl_comprl.record import RunRecord
from verl_comprl.rollout.recorder import PARTITION, EpisodeRecorder, pack, unpack
from verl_comprl.trainer.run_folder import episode_log
from verl_comprl.trainer.run_folder.episode_log import EpisodeLog
from verl_comprl.trainer.step import keys


def written(log: EpisodeLog, folder: Path) -> list[tuple[int, str, str, float | None]]:
    log.close(99)
    episodes = RunRecord(folder).episodes()
    return [(record["step"], record["id"], record["status"], record["advantage"]) for record in episodes]


def test_each_episode_is_written_when_it_is_known_what_became_of_it(queue: Queue, tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path, RecordConfig())
    queue.ended("e_0", evaluation=True)
    queue.ended("e_1", evaluation=True, failed=True)
    log.take(0)  # an evaluation before training

    queue.prompt("a", "b", "c")
    for id in ("a_0", "a_1", "b_0"):
        queue.ended(id)
    queue.ended("b_1", failed=True)  # its group goes on
    queue.partitions[PARTITION]["c_0"] = {}  # is being written
    log.trained(["a_0"], [0.5])  # two local updates
    log.trained(["a_1"], [-0.5])
    log.take(1)

    queue.ended("c_0")
    log.trained(["c_0"], [0.25])
    del queue.partitions["train"]["b"]  # too old
    log.take(2)
    assert written(log, tmp_path) == [
        (0, "e_0", "evaluated", None),
        (0, "e_1", "failed", None),
        (1, "a_0", "trained", 0.5),
        (1, "a_1", "trained", -0.5),
        (1, "b_1", "failed", None),
        (2, "b_0", "dropped", None),
        (2, "c_0", "trained", 0.25),
    ]
    assert queue.partitions[PARTITION] == {} and log.metrics() == {"comprl/record/episodes_lost": 0.0}
    assert undocumented(log.metrics()) == []


def test_an_episode_has_the_keys_that_the_page_names(queue: Queue, tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path, RecordConfig())
    queue.ended("a_0")
    queue.fields["a_0"] = EpisodeRecorder().packed({"uid": "a", "session_id": 0}, None, None, None)
    log.trained(["a_0"], [1.0])
    log.take(1)
    log.close(99)
    (episode,) = RunRecord(tmp_path).episodes()
    assert episode.keys() == rows(EPISODE).keys()


def test_an_evaluation_after_a_step_is_added_to_its_file(queue: Queue, tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path, RecordConfig())
    queue.ended("a_0")
    log.trained(["a_0"], [1.0])
    log.take(4)
    queue.ended("e_0", evaluation=True)
    log.take(4)
    assert written(log, tmp_path) == [(4, "a_0", "trained", 1.0), (4, "e_0", "evaluated", None)]


def test_episodes_without_a_record_are_counted(queue: Queue, tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path, RecordConfig())
    queue.ended("a_0")
    log.trained(["a_0", "a_1", "a_2"], [1.0, -1.0, 0.0])  # workers could not send two
    log.take(1)
    assert [id for _, id, *_ in written(log, tmp_path)] == ["a_0"]
    assert log.metrics() == {"comprl/record/episodes_lost": 2.0}


def test_records_that_cannot_be_read_leave_the_queue(queue: Queue, tmp_path: Path) -> None:
    log, queue.failure = EpisodeLog(tmp_path, RecordConfig()), RuntimeError("storage unit is gone")
    queue.ended("a_0")
    queue.ended("a_1")
    log.trained(["a_0", "a_1"], [1.0, -1.0])
    log.take(1)
    assert written(log, tmp_path) == []
    assert log.metrics() == {"comprl/record/episodes_lost": 2.0} and queue.partitions[PARTITION] == {}


def test_records_that_the_thread_takes_while_they_are_listed_are_not_taken_again(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EpisodeLog(tmp_path, RecordConfig())
    listed, wait, taken = queue.kv_list, threading.Event(), threading.Event()
    take = log._records

    def records(*arguments: Any) -> Any:
        assert wait.wait(60)
        return take(*arguments)

    def last() -> list[dict[str, Any]]:
        taken.set()  # writes are made in order, so those before it have ended
        return []

    def slowly_listed() -> dict[str, dict[str, dict[str, Any]]]:
        found = listed()
        wait.set()
        assert log.writer
        log.writer.write(1, last, 0)
        assert taken.wait(60)
        return found

    monkeypatch.setattr(log, "_records", records)
    queue.ended("a_0")
    log.trained(["a_0"], [1.0])
    log.take(1)
    queue.kv_list = slowly_listed
    queue.ended("b_0")
    log.trained(["b_0"], [0.5])
    log.take(2)
    assert written(log, tmp_path) == [(1, "a_0", "trained", 1.0), (2, "b_0", "trained", 0.5)]
    assert log.metrics() == {"comprl/record/episodes_lost": 0.0}


def test_a_step_that_a_stop_has_cut_short_is_written(queue: Queue, tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path, RecordConfig())
    queue.ended("a_0")
    log.trained(["a_0"], [1.0])
    assert written(log, tmp_path) == [(99, "a_0", "trained", 1.0)]


def test_what_has_ended_of_a_step_that_a_stop_has_left_is_dropped(queue: Queue, tmp_path: Path) -> None:
    """Its prompts are still there; an evaluation that was going on has no result, and its episodes have none either."""
    log = EpisodeLog(tmp_path, RecordConfig())
    queue.prompt("a", "b")
    queue.ended("a_0")
    queue.ended("b_1")
    queue.ended("a_1", failed=True)
    queue.ended("e_0", evaluation=True)
    queue.partitions[PARTITION]["b_0"] = {}  # is being written
    log.leave(4)
    assert written(log, tmp_path) == [(4, "a_0", "dropped", None), (4, "b_1", "dropped", None)]
    assert log.metrics() == {"comprl/record/episodes_lost": 0.0}


def test_a_queue_that_does_not_answer_keeps_no_run_from_stopping(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> Any:
        raise RuntimeError("controller is gone")

    monkeypatch.setattr(queue, "kv_list", fail)
    log = EpisodeLog(tmp_path, RecordConfig())
    log.leave(4)
    assert written(log, tmp_path) == [] and "controller is gone" in capsys.readouterr().out


def test_the_steps_to_keep_are_those_of_the_settings(queue: Queue, tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path, RecordConfig(keep_steps=2))
    for step in (1, 2, 3):
        queue.ended(f"{step}_0")
        log.trained([f"{step}_0"], [1.0])
        log.take(step)
    assert [step for step, *_ in written(log, tmp_path)] == [2, 3]


def test_switched_off_it_asks_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (episode_log, keys):
        monkeypatch.setattr(module, "tq", None)
    log = EpisodeLog(tmp_path, RecordConfig(enabled=False))
    log.trained(["a_0"], [1.0])
    log.take(1)
    log.leave(1)
    assert written(log, tmp_path) == [] and log.metrics() == {"comprl/record/episodes_lost": 0.0}


@pytest.mark.run
def test_through_a_real_queue(tmp_path: Path) -> None:
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
        for session in range(3):
            row = {"uid": "u", "session_id": session, "global_steps": 1, "data_source": "maze" * (session + 1)}
            asyncio.run(EpisodeRecorder().record(row, None, None, None))
        log = EpisodeLog(tmp_path, RecordConfig())
        log.trained(["u_0", "u_2"], [0.5, -0.5])
        log.take(1)
        expected = [(1, "u_0", "trained", 0.5), (1, "u_1", "dropped", None), (1, "u_2", "trained", -0.5)]
        assert written(log, tmp_path) == expected
        assert [episode["task"] for episode in RunRecord(tmp_path).episodes()] == ["maze", "maze" * 2, "maze" * 3]
        assert not tq.kv_list(PARTITION).get(PARTITION) and log.metrics()["comprl/record/episodes_lost"] == 0
        tq.close()
    finally:
        ray.shutdown()


def test_packing() -> None:
    line = '{"a":["ä",1]}'.encode()
    assert unpack(pack(line)) == line
