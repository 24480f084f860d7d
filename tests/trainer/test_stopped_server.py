"""A real run whose actor's server hangs says so, and ends well when the server goes on."""

import os
import re
import signal
from pathlib import Path

import pytest
from running import Run, read_steps

pytestmark = [pytest.mark.run, pytest.mark.long, pytest.mark.timeout(1500)]


def test_a_server_that_hangs_is_named_in_time_and_the_run_ends_well_when_it_goes_on(folder: Path) -> None:
    run = Run(
        folder,
        "trainer.total_training_steps=4",  # long enough for another look after the server went on
        f"trainer.default_local_dir={folder / 'stopped'}",
        "trainer.resume_mode=disable",
        "actor_rollout_ref.rollout.n=4",
        "comprl.drain_timeout=1",
        "comprl.watchdog.after=5",
        "comprl.watchdog.factor=1",
        script="stopping_run.py",
    )
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
