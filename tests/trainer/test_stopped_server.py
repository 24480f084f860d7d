"""A real run whose actor's server hangs says so, and ends well when the server goes on, or with an error if not."""

import contextlib
import os
import re
import signal
import time
from pathlib import Path

import pytest
from running import Run, last_step, read_steps
from stopping_run import PATIENCE

pytestmark = [pytest.mark.run, pytest.mark.long, pytest.mark.timeout(1500)]


def start(folder: Path, name: str, *overrides: str) -> Run:
    """Start a run whose server stops when its second step begins."""
    (folder / "stopping_run.jsonl").unlink(missing_ok=True)  # of the run before
    return Run(
        folder,
        "trainer.total_training_steps=4",  # long enough for another look after the server went on
        f"trainer.default_local_dir={folder / name}",
        "trainer.resume_mode=disable",
        "actor_rollout_ref.rollout.n=4",
        "comprl.drain_timeout=1",
        "comprl.watchdog.after=5",
        "comprl.watchdog.factor=1",
        *overrides,
        script="stopping_run.py",
    )


def test_a_server_that_hangs_is_named_in_time_and_the_run_ends_well_when_it_goes_on(folder: Path) -> None:
    run = start(folder, "stopped")
    try:
        run.wait_until(run.probe.exists)
        pid = int(run.probe.read_text())
        try:
            before = len(run.text())
            run.wait_until(lambda: "the actor's server 0: does not answer" in run.text()[before:])
        finally:
            os.kill(pid, signal.SIGCONT)
        code = run.process.wait(timeout=900)
    finally:
        run.process.kill()
    assert code == 0, run.text()
    said = run.text()[before:]
    found = re.search(r"watchdog: training > rollouts: (\d+) s so far, which is more than (\d+) s\n((?:  .*\n)+)", said)
    assert found, said
    # A look every quarter of five seconds, and five for the answer of a process.
    assert int(found[2]) <= int(found[1]) <= int(found[2]) + 12
    lines = found[3]
    assert re.search(r"this process: verl/trainer/ppo/v1/replay_buffer\.py:\d+ in ", lines)
    assert "prompts: training: 2 running\n" in lines
    assert re.search(r"episodes: 8 in generate \(oldest \d+ s\)\n", lines)
    assert re.search(r"experience manager: \d+ episodes? in the queue, \d+ samples? in the buffer", lines)
    assert "the extractor's server" not in lines and re.search(r"(\d+) of (\d+) processes answer", lines)
    assert "watchdog: training > rollouts: resumed after " in said
    log = (folder / "stopped" / "train.log").read_text()
    assert found[0] in log and "the watchdog found it here" in log
    assert [step["step"] for step in read_steps(folder / "stopped")] == [1, 2, 3, 4]
    assert run.processes() == []


@pytest.mark.parametrize("arm", ["complementary", "baseline"])
def test_a_server_that_never_goes_on_ends_the_run_with_an_error_that_names_it(
    folder: Path, arm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PATIENCE, "20")
    run = start(folder, f"hung_{arm}", f"arm={arm}", "trainer.save_freq=1")
    pid = 0
    try:
        run.wait_until(run.probe.exists)
        pid, stopped = int(run.probe.read_text()), time.monotonic()
        code = run.process.wait(timeout=400)
        seconds = time.monotonic() - stopped
        left = run.processes()
    finally:
        run.process.kill()
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    text = run.text()
    assert code == 1, text
    found = re.search(r"error: training > rollouts hangs: nothing has moved for .*\n((?:  .*\n)+)(.*)\n", text)
    assert found, text
    assert "  the actor's server 0: does not answer\n" in found[1]
    assert re.search(r"  this process: verl/trainer/ppo/v1/replay_buffer\.py:\d+ in ", found[1])
    assert ("experience manager: " in found[1]) == (arm == "complementary")
    assert found[2] == "the next start resumes from the latest checkpoint, if there is one"
    assert text.count("error:") == 1 and "Traceback" not in text and "have been killed" not in text
    # What is too long: 5 s, or as long as the first step's rollouts; then 20 s, a look, and the end of the run.
    assert 25 <= seconds < 300, seconds
    assert left == []
    log = (folder / f"hung_{arm}" / "train.log").read_text()
    assert "RunHung" in log and "KeyboardInterrupt" in log and "in _wait_for_next_poll" in log
    assert last_step(folder / f"hung_{arm}") == 1
    assert (folder / f"hung_{arm}" / "global_step_1" / "complete.json").exists()
