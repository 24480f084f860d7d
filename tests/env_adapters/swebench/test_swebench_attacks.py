"""Attacks by an agent on its sandbox: escape, privileges, network, exhaustion of resources."""

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from env_adapters import TextEnvironment
from env_adapters.swebench import bubblewrap
from env_adapters.swebench.expert import solve
from env_adapters.swebench.instances import tasks_of
from env_adapters.swebench.repositories import find_repository
from env_adapters.swebench.sandbox import Limits

Call = Callable[..., str]


@pytest.fixture
def agent(small: TextEnvironment, call: Call) -> Iterator[Callable[[str], str]]:
    """Run a command as the agent; after the test it must still be possible to win the episode."""
    small.reset(seed=0)

    def run(command: str) -> str:
        observation, reward, terminated, truncated, _ = small.step(call("bash", command=command))
        assert (reward, terminated, truncated) == (0.0, False, False), observation
        assert len(observation) < 10_000
        return observation

    yield run
    assert run("cd /testbed; echo still here") == "still here"
    small.step(call("bash", command="git reset -q --hard && git clean -fdq"))
    for message in solve(tasks_of("train", None, 0.25)[0]):
        _, reward, terminated, *_ = small.step(message)
    assert (reward, terminated) == (1.0, True)


def test_files_of_the_host_cannot_be_seen(agent: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("do not tell")
    for path in ("/etc/shadow", "/root", "/home", Path.home(), "/var", "/sys", "/boot", tmp_path / "secret", __file__):
        assert "No such file" in agent(f"cat {path}/* {path} 2>&1 | tail -n 1"), path
    assert "do not tell" not in agent(f"cat {tmp_path}/secret /proc/1/root{tmp_path}/secret /proc/1/cwd/../secret")
    assert agent("ls -A /; ls /etc").split() == (
        agent("ls -A /").split() + [name for name in ("alternatives", "hosts", "ld.so.cache", "passwd") if _shown(name)]
    )
    assert agent("cut -d : -f 1 /etc/passwd") == "agent"


def _shown(name: str) -> bool:
    return name in ("hosts", "passwd") or os.path.exists(f"/etc/{name}")


def test_the_host_s_variables_and_descriptors_cannot_be_seen(agent: Callable[[str], str]) -> None:
    allowed = {"HOME", "LANG", "PATH", "TERM", "TZ", "PWD", "OLDPWD", "SHLVL", "_", "PYTHONDONTWRITEBYTECODE"}
    names = {line.partition("=")[0] for line in agent("env").splitlines()}
    assert names <= allowed | {"PYTHONHASHSEED", "PYTHONUNBUFFERED"}
    assert "pipe:" in agent("ls -l /proc/$$/fd") and "/" not in agent("readlink /proc/$$/fd/* | grep -v ^/dev/null")


def test_the_agent_has_no_privileges(agent: Callable[[str], str]) -> None:
    status = agent("cat /proc/self/status")
    assert status.count("0000000000000000") >= 5 and "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status
    assert "Read-only" in agent("echo x >> /etc/passwd; touch /usr/x /bin/x 2>&1")
    for door in ("unshare -U true", "unshare -m true", "mount -t tmpfs none /tmp", "chroot /tmp true", "su -c true"):
        assert "[exit status" in agent(door), door
    calls = (
        "import ctypes, os\n"
        "c = ctypes.CDLL(None, use_errno=True)\n"
        "for name, arguments in (('ptrace', (16, 1)), ('shmget', (0, 4096, 0o1600)), ('memfd_create', (b'x', 0))):\n"
        "    print(name, getattr(c, name)(*arguments), ctypes.get_errno())\n"
        "keyctl = {'x86_64': 250, 'aarch64': 219}[os.uname().machine]\n"
        "print('keyctl', c.syscall(keyctl, 0, -3, 0), ctypes.get_errno())\n"
    )
    answers = agent(f"python3 - <<'END'\n{calls}END").split("\n")
    assert answers == [f"{name} -1 1" for name in ("ptrace", "shmget", "memfd_create", "keyctl")]


def test_there_are_no_new_namespaces_and_no_kernel_objects_outside_of_the_limits(agent: Callable[[str], str]) -> None:
    calls = (
        "import ctypes, errno, os\n"
        "c = ctypes.CDLL(None, use_errno=True)\n"
        "def refused(name, result):\n"
        "    print(name, result == -1 and errno.errorcode[ctypes.get_errno()])\n"
        # A set of semaphores takes 4 MiB of the kernel's memory and outlives the process that made it.
        "refused('semget', c.semget(0, 32000, 0o1600))\n"
        "refused('msgget', c.msgget(0, 0o1600))\n"
        "if os.uname().machine == 'x86_64':\n"
        "    refused('io_setup', c.syscall(206, 1000, ctypes.byref(ctypes.c_long())))\n"
        # User, process, network, mount, IPC, host name and cgroup namespaces.
        "for flag in (0x10000000, 0x20000000, 0x40000000, 0x20000, 0x8000000, 0x4000000, 0x2000000):\n"
        "    made = c.syscall({'x86_64': 56, 'aarch64': 220}[os.uname().machine], flag | 17, 0, 0, 0, 0)\n"
        "    if made == 0:\n        os._exit(0)\n"
        "    refused(hex(flag), made)\n"
        "asked = (ctypes.c_uint64 * 8)(0x10000000, 0, 0, 0, 17, 0, 0, 0)\n"
        "made = c.syscall(435, ctypes.byref(asked), 64)\n"
        "if made == 0:\n    os._exit(0)\n"
        "refused('clone3', made)\n"
    )
    answers = agent(f"python3 - <<'END'\n{calls}END").split("\n")
    assert len(answers) in (10, 11)
    assert all(answer.endswith((" EPERM", " ENOSPC")) for answer in answers), answers


def test_files_of_the_first_process_that_can_be_opened_change_nothing(agent: Callable[[str], str]) -> None:
    agent("for f in /proc/1/*; do { echo -17 >$f; } 2>/dev/null; done; echo 1000 1 2 2>/dev/null >/proc/self/uid_map")
    text = "import os\nfor name in os.listdir('/proc/1'):\n    try:\n        open('/proc/1/' + name).read(1)\n"
    text += "        print(name)\n    except (OSError, ValueError):\n        pass\n"
    opened = agent(f"python3 - <<'END'\n{text}END")
    assert not {"environ", "maps", "smaps", "mem", "auxv", "stack", "syscall", "personality"} & set(opened.split())
    assert agent("cut -d ' ' -f 2 /proc/1/stat") == "(supervisor)"


def test_there_is_no_network(agent: Callable[[str], str]) -> None:
    called = threading.Event()

    def listen(server: socket.socket) -> None:
        while True:
            try:
                server.accept()
            except OSError:
                return
            called.set()

    name = f"\0comprl-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(name)
        unix.listen()
        for server in (tcp, unix):
            threading.Thread(target=listen, args=(server,), daemon=True).start()
        port = tcp.getsockname()[1]
        attempts = (
            f"socket.create_connection(('127.0.0.1', {port}), 1)",
            f"socket.create_connection(('localhost', {port}), 1)",
            "socket.create_connection(('1.1.1.1', 53), 1)",
            "socket.create_connection(('2606:4700:4700::1111', 53), 1)",
            f"socket.socket(socket.AF_UNIX).connect({name!r})",
            "socket.getaddrinfo('example.org', 80)",
            "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('8.8.8.8', 53))",
            "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
        )
        for attempt in attempts:
            answer = agent(f"python3 -c \"import socket; {attempt}; print('REACHED')\" 2>&1")
            assert "REACHED" not in answer and "rror" in answer, attempt
        assert not called.is_set()
        socket.create_connection(("127.0.0.1", port)).close()
        assert called.wait(30)  # a connection would have been noticed
        for server in (tcp, unix):
            server.shutdown(socket.SHUT_RDWR)
    assert agent("tail -n +3 /proc/net/dev | cut -d : -f 1 | tr -d ' '") == "lo"


def test_other_processes_cannot_be_seen_or_signalled(agent: Callable[[str], str]) -> None:
    with subprocess.Popen(["sleep", "60"]) as victim:
        agent(f"kill -9 {victim.pid}; kill -9 {os.getpid()} {os.getppid()}; kill -9 -{os.getpgid(0)}; kill -9 -1")
        assert victim.poll() is None
        commands = agent("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert "pytest" not in commands and "sleep 60" not in commands and "bwrap" not in commands
        victim.kill()
    assert len(agent("ls -d /proc/[0-9]*").split()) < 10


def test_the_first_process_cannot_be_killed_or_used(agent: Callable[[str], str]) -> None:
    assert agent("for s in $(seq 64); do kill -$s 1 2>/dev/null; done; kill -9 -1; echo tried").endswith("tried")
    assert agent("sleep 0.3; echo here") == "here"
    agent("printf '\\0%s 0\\0' 0123456789abcdef")
    agent("for pipe in /proc/$$/fd/1?; do printf '0\\n0123456789abcdef 0\\n' > $pipe; done")
    agent("true")  # the shell may have read some of it
    assert agent("echo here") == "here"
    assert agent("kill -STOP $$") and agent("echo here") == "here"


def test_installed_packages_cannot_be_seen(agent: Callable[[str], str]) -> None:
    """Wherever below /usr they are; a folder that is hidden is there and empty."""
    assert agent("find /usr /lib* -path '*-packages/*' 2>/dev/null | head -3") == "(no output)"


def test_packages_of_every_interpreter_and_our_data_are_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = ["lib/pypy3/dist-packages", "share/conda/pkgs/flask-2/site-packages", "lib/python3.11/site-packages"]
    places += ["lib/python3.11/ensurepip", "share/python-wheels", "share/data", "conda/pkgs"]
    for place in (
        *places,
        "share/doc/packages",
        "share/doc/pkgs",
        "conda/conda-meta",
        f"{places[1]}/a/vendored-packages",
    ):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "share/ours/swebench").mkdir(parents=True)
    (tmp_path / "share/verified.jsonl").touch()
    # Our own files, where they are not among the packages.
    monkeypatch.setattr(bubblewrap, "__file__", str(tmp_path / "share/ours/swebench/bubblewrap.py"))
    monkeypatch.setattr(bubblewrap, "_system_folders", lambda: [])
    monkeypatch.setenv("SWEBENCH_DATA", str(tmp_path / "share/verified.jsonl"))
    monkeypatch.setenv("SWEBENCH_REPOSITORIES", str(tmp_path / "not made yet"))
    monkeypatch.setenv("COMPRL_DATA", str(tmp_path / "share/data"))
    hidden = bubblewrap._hidden(tmp_path)
    assert hidden == sorted(tmp_path / place for place in (*places, "share/ours", "share/verified.jsonl"))


def test_a_checkout_below_what_is_shown_is_hidden_with_all_that_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "src/app/env_adapters/swebench/bubblewrap.py"
    file.parent.mkdir(parents=True)
    (tmp_path / "src/app/pyproject.toml").touch()
    monkeypatch.setattr(bubblewrap, "__file__", str(file))
    monkeypatch.setattr(bubblewrap, "_system_folders", lambda: [str(tmp_path / "src")])
    for name in bubblewrap._DATA:
        monkeypatch.delenv(name, raising=False)
    assert bubblewrap._hidden(None) == [tmp_path / "src/app"]
    assert bubblewrap._hidden(tmp_path / "src/app/conda") == [tmp_path / "src/app/env_adapters"]


def test_packages_of_an_interpreter_behind_a_link_are_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conda-3/lib/site-packages").mkdir(parents=True)
    (tmp_path / "conda").symlink_to("conda-3")
    monkeypatch.setattr("sys.base_prefix", str(tmp_path / "conda"))
    monkeypatch.setattr(os.path, "exists", lambda path: False)  # no other Python
    monkeypatch.setattr(bubblewrap, "_system_folders", lambda: [])
    limits = Limits()
    command = bubblewrap.bubblewrap_command("bwrap", limits, seccomp=3, files={}, shell=4)
    shown, hidden = tmp_path / "conda-3", tmp_path / "conda-3/lib/site-packages"
    begin = command.index("--ro-bind")
    assert command[begin + 1 : begin + 3] == [str(shown)] * 2 and str(tmp_path / "conda") not in command
    assert command[command.index("--tmpfs") + 1] == str(hidden)


def test_memory_and_descriptors_of_the_first_process_are_closed(agent: Callable[[str], str]) -> None:
    for mode in ("rb", "r+b"):
        assert "PermissionError" in agent(f"python3 -c \"open('/proc/1/mem', '{mode}')\" 2>&1")
    assert "denied" in agent("echo forged >/proc/1/fd/9") and "denied" in agent("cat /proc/1/maps")
    assert "denied" in agent("cat /supervisor; ls /proc/1/fd")
    # A command that is not in the session is started by a copy of the first process, which knows the mark.
    look = "for p in /proc/[0-9]*; do (: <$p/mem) 2>/dev/null && cat $p/comm; done | sort -u"
    assert set(agent(look).split()) <= {"bash", "cat", "sort"}


def test_sockets_of_unusual_families_are_refused(agent: Callable[[str], str]) -> None:
    text = "import socket\nfor family in (1, 2, 10, 40, 38, 30):\n"
    text += "    try:\n        socket.socket(family).close(); print(family)\n"
    made = agent(f"python3 - <<'END'\n{text}    except PermissionError:\n        print(-family)\nEND")
    assert made.split() == ["1", "2", "10", "-40", "-38", "-30"]


def test_fork_bombs_are_stopped(agent: Callable[[str], str]) -> None:
    for bomb in (":(){ :|:& };:", "bomb() { bomb & bomb & }; bomb; sleep 1", "while :; do sleep 9 & done"):
        agent(bomb)
        agent("sleep 0.2")
        assert agent("echo defused") == "defused"
    assert len(agent("ls -d /proc/[0-9]*").split()) < 10


def test_disk_memory_output_and_time_are_limited(agent: Callable[[str], str]) -> None:
    assert "No space left" in agent("cat /dev/zero > /testbed/zero; rm /testbed/zero")
    assert "No space left" in agent("cat /dev/zero > /tmp/zero; cat /dev/zero > /dev/shm/zero; rm /tmp/zero")
    assert "MemoryError" in agent("python3 -c 'bytearray(1 << 30)'")
    hungry = "for i in 1 2 3; do python3 -c 'import time; x = bytearray(60 << 20); time.sleep(9)' & done; wait"
    assert "more than 128 MiB of memory" in agent(hungry)
    assert "it wrote more than 4194304 bytes" in agent("yes")
    assert "longer than 5 seconds" in agent("sleep 600")
    assert agent("dd if=/dev/zero bs=1M count=2 2>/dev/null | tr '\\0' x | wc -c") == "2097152"


def test_shell_exits_and_background_processes(agent: Callable[[str], str]) -> None:
    assert "a new one was started in /testbed" in agent("exit 3")
    assert "a new one was started in /testbed" in agent("exec true")
    assert agent("sleep 1000 & disown; setsid sleep 1000 & echo left") == "left"
    # On a busy machine a shell may have forked, and not yet become a sleep.
    assert agent("for i in $(seq 200); do pgrep sleep >/dev/null && break; done; pgrep -c sleep || true") in ("2", "1")
    killed = "pkill sleep; for i in $(seq 200); do pgrep sleep >/dev/null || break; done; pgrep -c sleep || true"
    assert agent(killed).startswith("0")
    assert "a new one" in agent("exec 0<&- 1>&- 2>&- 3>&- 4>&-; exit")


def test_terminal_escape_sequences_are_removed(agent: Callable[[str], str]) -> None:
    written = r"printf '\033[2J\033[31mred\033[0m\033]0;title\007 \033P+q\033\\ \a\b\r\n\0x\x9b1m\u202e'"
    text = agent(written)
    assert text.startswith("red +q \nx") and not any(ord(c) < 32 and c != "\n" for c in text)
    assert agent(
        "tput clear 2>/dev/null; stty 2>&1; tty"
    ) == "stty: 'standard input': Inappropriate ioctl for device\n" + ("not a tty\n[exit status 1]")


def test_the_history_has_only_the_base_commit(agent: Callable[[str], str], small: TextEnvironment) -> None:
    instance = tasks_of("train", None, 0.25)[0]
    repository = find_repository(instance.repo)
    assert repository is not None
    commits = subprocess.run(
        ["git", "-C", str(repository), "rev-list", "--all"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert len(commits) == 4 and small.task_id == instance.task_id
    assert agent("git rev-list --all --reflog").split() == [instance.base_commit]
    objects = agent("git cat-file --batch-all-objects --batch-check='%(objecttype)'").split()
    assert objects.count("commit") == 1 and "tag" not in objects
    for commit in set(commits) - {instance.base_commit}:
        assert "[exit status" in agent(f"git cat-file -t {commit}")
    assert agent("git remote; git tag; git stash list; git branch --format='%(refname:short)'") == "main"
    assert agent("git fsck --unreachable --dangling --no-progress 2>&1") == "(no output)"
    added = [line[1:] for line in instance.patch.splitlines() if line.startswith("+    ")]
    for line in added:
        assert "[exit status 1]" in agent(f"git grep -F -e '{line.strip()}' {instance.base_commit}")


def test_the_editor_does_not_follow_links_out_of_the_sandbox(
    agent: Callable[[str], str], small: TextEnvironment, call: Call, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("do not tell")
    agent(
        f"ln -s {secret} secret; ln -s /etc/shadow shadow; ln -s {tmp_path} out; ln -s /proc/1/root root; ln -s / all"
    )

    def edit(**arguments: object) -> str:
        return small.step(call("str_replace_editor", **arguments))[0]

    for path in ("secret", "shadow", "out/secret", f"root{secret}", f"all{secret}", "../etc/shadow", "../../../root"):
        assert "does not exist" in edit(command="view", path=f"/testbed/{path}"), path
    for path in ("out/new", f"root{tmp_path}/new", "secret", "../../usr/new"):
        edit(command="create", path=f"/testbed/{path}", file_text="mine")
        edit(command="str_replace", path=f"/testbed/{path}", old_str="do", new_str="did")
        edit(command="insert", path=f"/testbed/{path}", insert_line=0, new_str="mine")
    assert secret.read_text() == "do not tell" and [path.name for path in tmp_path.iterdir()] == ["secret"]
    # The editor's paths are not expanded by a shell.
    assert "Created" in edit(command="create", path="/testbed/$(touch pwned); `id` 'x'\n", file_text="x")
    assert "pwned" not in agent("ls").split()


def test_breaking_the_sandbox_loses_the_episode(small: TextEnvironment, call: Call) -> None:
    small.reset(seed=0)
    sandbox = small._sandbox  # type: ignore[attr-defined]
    sandbox._process.kill()
    sandbox._process.wait()  # or what runs in it may still answer
    observation, reward, terminated, truncated, info = small.step(call("bash", command="ls"))
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)
    assert "broke down" in observation
    assert small.reset(seed=0)[0].startswith("The repository")
    small._sandbox._process.kill()  # type: ignore[attr-defined]
    small._sandbox._process.wait()  # type: ignore[attr-defined]
    observation, reward, terminated, *_ = small.step(call("submit"))
    assert (reward, terminated) == (0.0, True) and "not tested" in observation
