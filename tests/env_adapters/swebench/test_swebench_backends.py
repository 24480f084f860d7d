"""Docker's command line, the SWE-ReX client and the system call filter, tested without an engine."""

import json
import os
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from env_adapters.swebench import docker
from env_adapters.swebench.docker import docker_command, start_docker
from env_adapters.swebench.process import ProcessSandbox
from env_adapters.swebench.remote import RemoteSandbox, start_remote
from env_adapters.swebench.sandbox import Limits, Sandbox, SandboxError, SandboxLost
from env_adapters.swebench.seccomp import build_filter


def test_a_container_is_isolated_and_limited() -> None:
    limits = Limits(memory=1000, disk=100, processes=50, timeout=10)
    command = docker_command("docker", limits, "image:1", "name")
    text = " ".join(command[: command.index("image:1")])
    for part in (
        "docker run --rm --interactive --name name --network none --cap-drop ALL --security-opt no-new-privileges",
        "--pids-limit 100",
        "--memory 1200m --memory-swap 1200m",
        "--read-only --tmpfs /tmp:rw,exec,nosuid,nodev,size=104857600",
        "--volume /testbed --workdir /testbed",
        "--entrypoint bash",
    ):
        assert part in text, part
    assert "--privileged" not in text and ":/" not in text.replace("/tmp:", "")
    assert command[-4:] == ["50", "1024000", command[-2], "100000"] and "kill -STOP -1" in " ".join(command)
    assert "--read-only" not in docker_command("docker", limits, "image:1", "name", writable=True)
    without = docker_command("docker", limits, "", "name")
    assert docker.DEFAULT_IMAGE in without and "--volume" not in without
    assert any(part.startswith("/testbed:rw,exec,nosuid,nodev,size=104857600") for part in without)


WITHOUT_CAPABILITIES = ["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs"]


def test_a_containers_supervisor_keeps_its_memory_and_files_from_root(tmp_path: Path) -> None:
    """Of a container's command line what is run in it, as root without capabilities in a process namespace."""
    namespace = ["unshare", "--pid", "--fork", "--mount", "--mount-proc", "setpriv", *WITHOUT_CAPABILITIES]
    tried = subprocess.run([*namespace, "true"], capture_output=True, check=False) if os.geteuid() == 0 else None
    if tried is None or tried.returncode:
        pytest.skip("needs root, unshare and setpriv")
    limits = Limits()
    command = docker_command("docker", limits, "image:1", "name")
    inside = ["bash", *command[command.index("image:1") + 1 :]]
    sandbox = ProcessSandbox([*namespace, *inside], limits, cwd=tmp_path)
    try:
        for file in ("mem", "maps", "environ", "fd/0", "exe"):
            said = sandbox.exec(f"cat /proc/1/{file}")
            assert said.code and b"denied" in said.data, file
        own = sandbox.exec("cat /proc/$$/maps; true").data, sandbox.exec("ls -l /proc/$$/fd; true").data
        assert all(b"denied" in text for text in own), "the shell of a script that holds the hidden tests"
        assert not Path(docker._PROGRAM).exists(), "with the file its rights could be changed"
    finally:
        sandbox.close()


def test_a_missing_docker_client_or_engine_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "docker"
    fake.write_text(
        f'#!/bin/sh\necho "$1" >> {tmp_path}/calls\necho "Cannot connect to the Docker daemon" >&2\nexit 1\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(SandboxError, match="Cannot connect to the Docker daemon"):
        start_docker(Limits())
    assert (tmp_path / "calls").read_text() == "run\nrm\n"  # a container that may have been started is removed
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SandboxError, match="docker not found"):
        start_docker(Limits())


class Server(BaseHTTPRequestHandler):
    """SWE-ReX's side of the protocol, in front of a bubblewrap sandbox."""

    sandbox: Sandbox
    requests: list[tuple[str, dict[str, Any]]]

    def do_GET(self) -> None:
        self.requests.append((self.path, {}))
        self.answer({"is_alive": True})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.append((self.path, body))
        if self.headers["X-API-Key"] != "token":
            self.answer({"detail": "Invalid API Key"}, 401)
        elif self.path == "/write_file":
            self.sandbox.write(body["path"], body["content"].encode())
            self.answer({})
        elif self.path in ("/execute", "/run_in_session"):
            session = self.path == "/run_in_session"
            command = body["command"] if session else body["command"][2]
            output = self.sandbox.exec(command, session=session, timeout=body["timeout"])
            if output.stopped == "timeout":
                error = {"message": "", "class_path": "swerex.exceptions.CommandTimeoutError", "traceback": ""}
                self.answer({"swerexception": error}, 511)
            else:
                text = output.data.decode(errors="backslashreplace")
                self.answer({"output" if session else "stdout": text, "exit_code": output.code})
        else:
            self.answer({})

    def answer(self, content: Any, status: int = 200) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Callable[..., tuple[str, type[Server]]]]:
    servers: list[ThreadingHTTPServer] = []

    def start_server(sandbox: Sandbox | None = None, **methods: Any) -> tuple[str, type[Server]]:
        handler = type("Handler", (Server,), {"sandbox": sandbox, "requests": [], **methods})
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}", handler

    yield start_server
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_remote_sandbox_behaves_like_a_local_one(
    start: Callable[..., Sandbox], serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, server = serve(start())
    monkeypatch.setenv("SWEREX_HOST", "127.0.0.1")
    monkeypatch.setenv("SWEREX_PORT", address.rpartition(":")[2])
    monkeypatch.setenv("SWEREX_AUTH_TOKEN", "token")
    sandbox = start_remote(Limits(timeout=5, output=1000))
    assert sandbox.exec("cd /tmp; x='a b'\necho $x; (exit 3)", session=True).code == 3
    assert sandbox.exec("pwd; echo $x", session=True).data == b"/tmp\na b\n"
    output = sandbox.exec("cat; printf '\\0\\377' >&2; (exit 4)", stdin=b"\1\xfe\n")
    assert (output.data, output.code) == (b"\1\xfe\n\0\xff", 4)
    assert sandbox.exec("pwd").data == b"/testbed\n"
    assert sandbox.write("/testbed/a b", b"\0x").ok and sandbox.read("/testbed/a b") == b"\0x"
    assert sandbox.exec("yes").stopped == "output"
    for session in (False, True):
        assert sandbox.exec("sleep 9", timeout=0.3, session=session).stopped == "timeout"
    assert sandbox.exec("pwd", session=True).data == b"/testbed\n"
    sandbox.close()
    path, body = server.requests[-1]
    assert path == "/execute" and body["command"] == ["bash", "-c", "kill -KILL -1"]


def test_missing_and_misbehaving_servers_are_reported(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SWEREX_HOST", raising=False)
    with pytest.raises(SandboxError, match="set SWEREX_HOST"):
        start_remote(Limits())
    with pytest.raises(SandboxError, match="no SWE-ReX server answers"):
        RemoteSandbox("http://127.0.0.1:1", "", Limits(), start_seconds=0.1)
    address, _ = serve()
    with pytest.raises(SandboxLost, match="refused"):
        RemoteSandbox(address, "wrong token", Limits())
    # SWE-ReX's own client would call this class.
    evil = {"swerexception": {"class_path": "builtins.exec", "message": "raise SystemExit('run')", "traceback": ""}}
    for content, status in ((b"no json", 200), ([1], 200), (evil, 511), (b"\xff", 511)):

        def post(self: Server, content: Any = content, status: int = status) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(content, status)

        address, _ = serve(do_POST=post)
        with pytest.raises(SandboxLost):
            RemoteSandbox(address, "token", Limits())


def run_filter(program: bytes, arch: int, number: int, argument: int = 0) -> int:
    """Run a BPF program as the kernel would."""
    code = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    data = struct.pack("=IIQQ", number, arch, 0, argument)
    at = accumulator = 0
    while True:
        operation, true, false, value = code[at]
        at += 1
        if operation == 0x20:
            accumulator = struct.unpack_from("=I", data, value)[0]
        elif operation == 0x06:
            return value
        else:
            at += true if (accumulator == value if operation == 0x15 else accumulator >= value) else false


@pytest.mark.parametrize(
    ("machine", "arch", "refused", "allowed"),
    [
        ("x86_64", 0xC000003E, (319, 29, 101, 165, 250, 321, 425, 430), (0, 1, 56, 57, 59, 435)),
        ("aarch64", 0xC00000B7, (279, 194, 117, 40, 219, 280, 425, 430), (63, 64, 220, 221, 435)),
    ],
)
def test_the_filter_refuses_its_calls(
    machine: str, arch: int, refused: tuple[int, ...], allowed: tuple[int, ...]
) -> None:
    program = build_filter(machine)
    allow, refuse = 0x7FFF0000, 0x00050001
    assert all(run_filter(program, arch, number) == refuse for number in refused)
    assert all(run_filter(program, arch, number) == allow for number in allowed)
    socket = 41 if machine == "x86_64" else 198
    assert all(run_filter(program, arch, socket, family) == allow for family in (1, 2, 10, 16))
    assert all(run_filter(program, arch, socket, family) == refuse for family in (0, 17, 38, 40))
    assert run_filter(program, 0x40000003, 1) == refuse  # the 32-bit interface, which has other numbers
    assert run_filter(program, arch, 0x40000000 + 1) == refuse
    with pytest.raises(ValueError, match="no system call filter for machine 'vax'"):
        build_filter("vax")


def test_the_call_numbers_agree_with_the_kernel_headers() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.is_file():
        pytest.skip("no kernel headers")
    from env_adapters.swebench.seccomp import _REFUSED, _SOCKET

    calls = _REFUSED | {"socket": _SOCKET}
    defined = dict(line.split()[1:3] for line in header.read_text().splitlines() if line.startswith("#define __NR_"))
    assert {name: int(defined.get(f"__NR_{name}", numbers[0])) for name, numbers in calls.items()} == {
        name: numbers[0] for name, numbers in calls.items()
    }
