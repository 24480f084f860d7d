"""Priorities of a process that has threads and children, read from the kernel."""

import os
import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    import os, subprocess, threading
    from verl_comprl.platform.priority import set_cpu_priority

    def policies():
        return {os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task")}

    waiting = threading.Event()
    threading.Thread(target=waiting.wait).start()
    child = subprocess.Popen(["sleep", "60"])
    try:
        set_cpu_priority("idle")
        threading.Thread(target=waiting.wait).start()
        assert policies() == {os.SCHED_IDLE}, policies()
        assert os.sched_getscheduler(child.pid) == os.SCHED_IDLE
        with subprocess.Popen(["sleep", "60"]) as later:
            assert os.sched_getscheduler(later.pid) == os.SCHED_IDLE
            later.kill()
        try:
            set_cpu_priority("normal")
        except PermissionError as error:
            print("refused:", error)
        else:
            assert policies() == {os.SCHED_OTHER}, policies()
            assert os.sched_getscheduler(child.pid) == os.SCHED_OTHER
            print("restored")
    finally:
        waiting.set()
        child.kill()
"""


@pytest.mark.parametrize("user", [None, 65534], ids=["as it is", "without privileges"])
def test_all_threads_and_children_get_the_priority_and_those_started_later_inherit_it(user: int | None) -> None:
    if user is not None and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    drop = f"import os; os.setgid({user}); os.setuid({user})\n" if user else ""
    program = "from verl_comprl.platform.priority import set_cpu_priority\n" + drop + textwrap.dedent(PROGRAM)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    if user is None and os.geteuid() == 0:
        assert done.stdout.strip() == "restored"
    if user is not None:
        assert done.stdout.startswith("refused: comprl.extractor.cpu_priority=normal: ")
