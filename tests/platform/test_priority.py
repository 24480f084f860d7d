"""Priorities of a process that has threads and children, read from the kernel."""

import os
import subprocess
import sys
import textwrap

import pytest

from verl_comprl.platform import priority

PROGRAM = """
    import os, subprocess, threading
    from verl_comprl.platform.priority import set_cpu_priority

    def policies():
        return {os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task")}

    waiting = threading.Event()
    threading.Thread(target=waiting.wait).start()
    child = subprocess.Popen(["sleep", "300"])
    try:
        set_cpu_priority("idle")
        threading.Thread(target=waiting.wait).start()
        assert policies() == {os.SCHED_IDLE}, policies()
        assert os.sched_getscheduler(child.pid) == os.SCHED_IDLE
        with subprocess.Popen(["sleep", "300"]) as later:
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
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    if user is None and os.geteuid() == 0:
        assert done.stdout.strip() == "restored"
    if user is not None:
        assert done.stdout.startswith("refused: comprl.extractor.cpu_priority=normal: ")


@pytest.mark.parametrize("given", [0, 5, 19])
def test_where_idle_priority_is_forbidden_normal_priority_takes_the_niceness_back(
    monkeypatch: pytest.MonkeyPatch, given: int
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    niceness = {1: given, 2: given}
    monkeypatch.setattr(priority, "_before", None)
    monkeypatch.setattr(priority, "_threads", lambda: iter(niceness))
    monkeypatch.setattr(os, "sched_getscheduler", lambda thread: os.SCHED_OTHER)
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    monkeypatch.setattr(os, "getpriority", lambda which, thread: niceness[thread])
    monkeypatch.setattr(os, "setpriority", lambda which, thread, value: niceness.update({thread: value}))
    priority.set_cpu_priority("normal")
    assert niceness == {1: given, 2: given}, "what the user has given is left alone"
    priority.set_cpu_priority("idle")
    priority.set_cpu_priority("idle")
    assert niceness == {1: 19, 2: 19}
    niceness[3] = 19  # started meanwhile
    priority.set_cpu_priority("normal")
    assert niceness == {1: given, 2: given, 3: given}
