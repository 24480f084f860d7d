"""Bubblewrap sandboxes: shell, limits and shutdown."""

import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from env_adapters.swebench import bubblewrap
from env_adapters.swebench.bubblewrap import start_bubblewrap
from env_adapters.swebench.process import ProcessSandbox, supervisor_command
from env_adapters.swebench.sandbox import Limits, Sandbox, SandboxError, SandboxLost

Start = Callable[..., Sandbox]
ROOT = Path(__file__).parents[3]


def shell(sandbox: Sandbox, command: str) -> str:
    output = sandbox.exec(command, session=True)
    assert output.ok, output
    return output.data.decode()


def test_the_session_shell_persists_and_other_shells_are_separate(start: Start) -> None:
    sandbox = start()
    shell(sandbox, "cd /tmp; x=5; greet() { echo hello $1; }; export y=6")
    assert shell(sandbox, "pwd; echo $x; greet you; bash -c 'echo $y'") == "/tmp\n5\nhello you\n6\n"
    assert sandbox.exec("pwd; echo $x$y").data == b"/testbed\n\n"
    assert shell(sandbox, "pwd") == "/tmp\n"


@pytest.mark.parametrize("session", [False, True])
def test_status_and_output_are_returned_unchanged(start: Start, session: bool) -> None:
    sandbox = start()
    output = sandbox.exec("printf 'a\\0b\\377'; echo c >&2; (exit 7)", session=session)
    assert (output.data, output.code, output.stopped, output.ok) == (b"a\0b\xffc\n", 7, "", False)
    several = "for i in 1 2; do\n  echo \"$i'\"\ndone\ncat <<'END'\n$x `y` \\\nEND\n"
    assert sandbox.exec(several, session=session).data == b"1'\n2'\n$x `y` \\\n"
    assert b"syntax error" in sandbox.exec("if then", session=session).data
    assert sandbox.exec("echo \udcff é", session=session).data == "? é\n".encode()
    assert sandbox.exec("cat", session=session).data == b""
    assert sandbox.exec("", session=session).ok
    large = "x" * 300_000
    assert sandbox.exec(f"echo {large} | wc -c", session=session).data.strip() == b"300001"


def test_ordinary_programs_work(start: Start) -> None:
    sandbox = start()
    assert shell(sandbox, "echo a | tee /dev/stderr > /dev/stdout; whoami; hostname") == "a\na\nagent\nsandbox\n"
    assert shell(sandbox, "diff <(echo a) <(echo a) && cat <<< b && mktemp -d | cut -c 1-5") == "b\n/tmp/\n"
    server = (
        "import http.server, threading, urllib.request, multiprocessing, sqlite3, ssl\n"
        "server = http.server.HTTPServer(('localhost', 0), http.server.SimpleHTTPRequestHandler)\n"
        "threading.Thread(target=server.serve_forever, daemon=True).start()\n"
        "print(urllib.request.urlopen(f'http://localhost:{server.server_port}/').status)\n"
        "with multiprocessing.Pool(2) as pool: print(pool.map(abs, [-1, 2]))\n"
    )
    sandbox.write("/testbed/serve.py", server.encode())
    assert shell(sandbox, "python3 serve.py 2>/dev/null") == "200\n[1, 2]\n"


def test_no_end_of_a_command_is_missed(start: Start) -> None:
    # The supervisor polls every 0.1 s; a command that ended at exactly that moment was once missed.
    def run(_: int) -> list[bytes]:
        sandbox = start()
        return [sandbox.exec("sleep 0.09; echo x", session=bool(number % 2)).data for number in range(10)]

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(run, range(4))) == [[b"x\n"] * 10] * 4


def test_standard_input_reaches_a_command_whole(start: Start) -> None:
    data = bytes(range(256)) * 4000
    sandbox = start(output=2**21)
    assert sandbox.exec("cat", stdin=data).data == data
    # Input that a command does not read is not passed to the next one.
    assert sandbox.exec("true", stdin=data).ok and sandbox.exec("cat", stdin=b"x").data == b"x"


def test_files_are_written_and_read(start: Start) -> None:
    sandbox = start()
    path = "/testbed/a b/it's $HOME.txt"
    assert sandbox.write(path, b"\0\xff\n").ok and sandbox.read(path) == b"\0\xff\n"
    assert sandbox.read("/testbed/none") is None and sandbox.read("/testbed") is None
    assert sandbox.read("/dev/zero") is None and sandbox.read("--help") is None
    assert not sandbox.write("/usr/x", b"").ok
    sandbox.write("/testbed/long", b"x" * 100_001)
    assert sandbox.read("/testbed/long") is None


def test_a_command_that_takes_too_long_is_stopped_and_a_new_shell_works(start: Start) -> None:
    sandbox = start()
    sandbox.exec("cd /tmp; echo kept > f", session=True)
    for endless in ("sleep 60", "trap '' INT TERM HUP; while :; do :; done", "(trap '' TERM; sleep 60)"):
        begin = time.monotonic()
        output = sandbox.exec(f"echo before; {endless}", timeout=2, session=True)
        assert (output.data, output.stopped, output.ok) == (b"before\n", "timeout", False)
        assert 1.9 < time.monotonic() - begin < 20
        assert shell(sandbox, "pwd; cat /tmp/f") == "/testbed\nkept\n"
    assert start(timeout=0.1).exec("sleep 60").stopped == "timeout"
    assert sandbox.exec("sleep 60", timeout=0.2).stopped == "timeout"
    assert sandbox.exec("sleep 0.5; echo done", timeout=5).data == b"done\n"


def test_output_beyond_the_limit_stops_the_command(start: Start) -> None:
    sandbox = start(output=1000)
    assert sandbox.exec("head -c 1000 /dev/zero | tr '\\0' x").data == b"x" * 1000
    begin = time.monotonic()
    for session in (False, True):
        output = sandbox.exec("yes", session=session)
        assert output.stopped == "output" and output.data == b"y\n" * 500
    assert time.monotonic() - begin < 20
    assert shell(sandbox, "echo here") == "here\n"


@pytest.mark.slow
def test_output_of_a_stopped_command_never_reaches_the_next(start: Start) -> None:
    # A process that is writing when it is killed still finishes that write.
    sandbox = start(output=1000)
    for _ in range(40):
        assert sandbox.exec("for i in 1 2 3; do yes & done; yes", session=True).stopped == "output"
        assert shell(sandbox, "echo here") == "here\n"


def test_the_end_of_the_shell_is_noticed(start: Start) -> None:
    sandbox = start()
    for end in ("exit", "exit 0", "kill -9 $$", "exec sleep 60", "set -u; echo $unset"):
        assert sandbox.exec(end, session=True).stopped == "exited", end
        assert shell(sandbox, "echo here") == "here\n"
    sandbox.exec("exec >/dev/null 2>&1", session=True)
    assert not sandbox.exec("echo hidden", session=True).data
    assert sandbox.exec("echo() { :; }; builtin() { exit 1; }", session=True).stopped == "exited"
    assert shell(sandbox, "echo here") == "here\n"


def test_background_processes_are_suspended_between_commands(start: Start) -> None:
    sandbox = start()
    sandbox.exec("(while :; do echo x >> /tmp/ticks; sleep 0.01; done) & disown", session=True)
    size = len(sandbox.read("/tmp/ticks") or b"")
    time.sleep(0.3)
    assert len(sandbox.read("/tmp/ticks") or b"") - size <= 2
    sandbox.exec("sleep 3", session=True)
    assert len(sandbox.read("/tmp/ticks") or b"") - size > 6


def test_memory_is_limited_per_process_and_in_total(start: Start) -> None:
    sandbox = start(memory=64)
    assert b"MemoryError" in sandbox.exec("python3 -c 'bytearray(100 << 20)'").data
    several = "for i in 1 2 3 4; do python3 -c 'import time; x = bytearray(30 << 20); time.sleep(5)' & done; wait"
    assert sandbox.exec(several, session=True).stopped == "memory"
    shared = (
        "import mmap, time; m = mmap.mmap(-1, 99 << 20); [m.write(bytes(1 << 20)) for _ in range(99)]; time.sleep(5)"
    )
    assert sandbox.exec(f"python3 -c '{shared}'").stopped == "memory"
    assert shell(sandbox, "echo here") == "here\n"


def test_memory_of_page_tables_is_limited(start: Start) -> None:
    """Reading a byte of every 2 MiB of a mapping costs a page of the kernel's memory, and none of the process's."""
    sandbox = start(memory=64)
    touch = (
        "import mmap, time\n"
        "made = mmap.mmap(-1, {gib} << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)\n"
        "print(sum(made[at << 21] for at in range({gib} << 9)))\n"
    )
    assert b"Cannot allocate memory" in sandbox.exec("python3 -", stdin=touch.format(gib=33).encode()).data
    assert sandbox.exec("python3 -", stdin=touch.format(gib=4).encode()).data == b"0\n"
    sandbox.write("/tmp/touch.py", f"{touch.format(gib=20)}time.sleep(5)".encode())
    assert sandbox.exec("python3 /tmp/touch.py & python3 /tmp/touch.py & wait").stopped == "memory"


def test_processes_and_threads_are_limited(start: Start) -> None:
    sandbox = start(processes=16)
    assert sandbox.exec("for i in $(seq 40); do sleep 5 & done; wait", session=True).stopped == "processes"
    threads = "import threading, time\nfor i in range(40): threading.Thread(target=time.sleep, args=(5,)).start()"
    assert sandbox.exec(f"python3 -c '{threads}'").stopped == "processes"
    # The limit enforced by the kernel is twice as high.
    forks = "import os, time\nfor i in range(99):\n  os.fork() or time.sleep(5)\n  open('/tmp/forks', 'a').write('x')"
    sandbox.exec(f'python3 -c "{forks}"')
    assert 10 < len(sandbox.read("/tmp/forks") or b"") <= 32
    assert shell(sandbox, "echo here") == "here\n"


def test_files_are_limited_in_size_and_number(start: Start) -> None:
    sandbox = start(disk=4, files=500)
    for folder in ("/testbed", "/tmp"):
        assert b"No space left" in sandbox.exec(f"head -c 9M /dev/zero > {folder}/large").data
        assert sandbox.exec(f"stat -c %s {folder}/large; rm {folder}/large").data == b"4194304\n"
    many = "for i in $(seq 2000); do : > /tmp/$i; done; sleep 8"
    assert sandbox.exec(many, session=True).stopped == "files"
    assert sandbox.exec("find /tmp -type f -delete; sleep 0.3; find /tmp -type f | wc -l", session=True).data == b"0\n"
    assert shell(sandbox, "sleep 0.3; echo here") == "here\n"


def test_all_writable_file_systems_have_a_size_limit(start: Start) -> None:
    sandbox = start(disk=4)
    found = sandbox.exec("find / -xdev -writable -not -type l 2>/dev/null; find /dev /etc -writable -not -type l")
    devices = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "pts", "pts/ptmx")}
    assert set(found.data.decode().split()) - devices == {"/testbed", "/tmp", "/dev/shm"}
    sizes = sandbox.exec("df --output=target,size -k").data.decode().split("\n")
    size_of = {line.split()[0]: int(line.split()[1]) for line in sizes[1:] if line}
    assert size_of["/testbed"] == size_of["/tmp"] == 4096 and size_of["/dev/shm"] == 16384
    mounts = sandbox.exec("cat /proc/mounts").data.decode().splitlines()
    writable = {line.split()[1] for line in mounts if "rw" in line.split()[3].split(",")}
    assert writable - devices == {"/proc", "/dev/shm", "/tmp", "/testbed"}


def test_cpu_time_is_limited(start: Start) -> None:
    cores = os.cpu_count() or 1
    sandbox = start(timeout=30)
    assert int(sandbox.exec("ulimit -t").data) == 30 * cores + 1
    assert int(sandbox.exec("ulimit -t", session=True).data) == 30 * cores + 1


def test_closing_leaves_no_process(start: Start) -> None:
    sandbox = start()
    sandbox.exec("setsid nohup sleep 91827 >/dev/null 2>&1 & sleep 1", session=True)

    def running() -> list[int]:
        return [
            process.pid for process in psutil.process_iter(["cmdline"]) if "91827" in (process.info["cmdline"] or [])
        ]

    assert running()
    sandbox.close()
    sandbox.close()
    deadline = time.monotonic() + 30
    while running() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not running()
    with pytest.raises(SandboxLost, match="closed"):
        sandbox.exec("true")


def test_a_sandbox_dies_with_its_owner() -> None:
    script = (
        "import os\nfrom env_adapters.swebench.bubblewrap import start_bubblewrap\n"
        "from env_adapters.swebench.sandbox import Limits\n"
        "sandbox = start_bubblewrap(Limits())\nsandbox.exec('sleep 81726 & sleep 0.1', session=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == -9
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        left = [p.pid for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "81726"]]
        if not left:
            break
        time.sleep(0.02)
    assert not left


def test_a_sandbox_has_its_own_session_only_with_a_terminal(tmp_path: Path) -> None:
    """A session of the host appears as number 0 inside the sandbox."""
    result = tmp_path / "result"
    script = (
        "import pathlib\nfrom env_adapters.swebench.bubblewrap import start_bubblewrap\n"
        "from env_adapters.swebench.sandbox import Limits\n"
        "answer = start_bubblewrap(Limits()).exec('cut -d\" \" -f6 /proc/self/stat; : </dev/tty').data\n"
        f"pathlib.Path({str(result)!r}).write_bytes(answer)"
    )
    command = [sys.executable, "-c", script]
    subprocess.run(command, cwd=ROOT, start_new_session=True, check=True)
    first, second = result.read_text().splitlines()
    assert first == "0" and "/dev/tty: No such device" in second
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execv(command[0], command)
    assert os.waitpid(pid, 0)[1] == 0
    os.close(terminal)
    first, second = result.read_text().splitlines()
    assert first != "0" and "/dev/tty: No such device" in second


def test_a_sandbox_outlives_the_thread_that_requested_it(start: Start) -> None:
    import threading

    made: list[Sandbox] = []
    thread = threading.Thread(target=lambda: made.append(start()))
    thread.start()
    thread.join()
    time.sleep(0.1)
    assert shell(made[0], "echo here") == "here\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="the others run without root already")
def test_it_needs_no_root(start: Start) -> None:
    start()
    script = (
        "import os\nfrom env_adapters.swebench.bubblewrap import start_bubblewrap\n"
        "from env_adapters.swebench.sandbox import Limits\n"
        "assert os.getuid() == 54321\n"
        "sandbox = start_bubblewrap(Limits(processes=20))\n"
        "print(sandbox.exec('id -u; ulimit -u; touch /testbed/x && echo written').data)\n"
        "print(sandbox.exec('for i in $(seq 40); do sleep 5 & done; wait', session=True).stopped)"
    )
    run = subprocess.run(
        ["/usr/bin/python3", "-c", script],
        cwd=ROOT,
        user=54321,
        group=54321,
        extra_groups=[],
        env={"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout == "b'1000\\n40\\nwritten\\n'\nprocesses\n", run.stderr


def test_failures_to_start_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SandboxError, match="cannot run '/no/such/program'"):
        ProcessSandbox(["/no/such/program"], Limits())
    with pytest.raises(SandboxError, match=r"did not start a sandbox.*no engine"):
        ProcessSandbox(["bash", "-c", "echo no engine"], Limits())
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda _: None)
    with pytest.raises(SandboxError, match="install bubblewrap"):
        start_bubblewrap(Limits())


def test_the_supervisor_does_not_wait_for_an_orphan_whose_end_it_was_not_told() -> None:
    """Bash misses one of a thousand on a busy machine; here it ends before bash begins."""
    script = supervisor_command(Limits())[4]
    function = script[script.index("end_all() {") : script.index("\nstart\n")]
    orphan = "import os, sys, time; os.fork() or os._exit(0); time.sleep(0.5); os.execvp(sys.argv[1], sys.argv[1:])"
    namespaces = ["bwrap", "--unshare-pid", "--as-pid-1", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc"]
    command = [*namespaces, "--", sys.executable, "-c", orphan, "bash", "-c", f"{function}\nend_all; echo alone"]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout == "alone\n"


def test_the_supervisor_refuses_to_run_where_it_is_not_the_first_process() -> None:
    # In its own process namespace, so that a supervisor that does not refuse cannot suspend this machine's processes.
    namespaces = ["bwrap", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--"]
    run = subprocess.run(
        [*namespaces, *supervisor_command(Limits())], input=b"m 0 4 0\ntrue", capture_output=True, check=False
    )
    assert (run.returncode, run.stdout) == (1, b"")


@pytest.mark.parametrize(("name", "value"), [("timeout", 0), ("memory", -1), ("disk", 0), ("processes", 0)])
def test_limits_must_be_positive(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name} must be positive, got {value}"):
        Limits(**{name: value})
