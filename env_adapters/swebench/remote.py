"""Sandboxes on another machine, behind a SWE-ReX server.

Owns the client's side of SWE-ReX 1.4's protocol: JSON over HTTP. SWE-ReX's own client is not used, because it creates
exceptions of any class that an answer names, and answers come from the machine on which the agent's code runs.

``$SWEREX_HOST``, ``$SWEREX_PORT`` and ``$SWEREX_AUTH_TOKEN`` give the server's address and token. The server is
responsible for isolation and for all limits except time and output. A server is used by one sandbox at a time. Closing
the sandbox kills all processes of the server, whose operator must then start a fresh container at the same address.
"""

import base64
import http.client
import json
import os
import shlex
import time
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Any

from env_adapters.swebench.sandbox import WORK_TREE, Limits, Output, Sandbox, SandboxError, SandboxLost

_START_SECONDS = 120.0
_GRACE = 20.0
_SESSION = "agent"
_FILES = "/tmp/.comprl"
_ERROR = 511  # SWE-ReX's own HTTP status: the command could not be run, or did not finish
# Without proxies, so that the token is sent to the server only.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class _ServerError(SandboxLost):
    """The server reported that a request failed; the message is the kind of failure."""


def start_remote(limits: Limits, image: str = "", *, writable: bool = False) -> "RemoteSandbox":
    """Start a sandbox; see ``backends.Start``. The server must run the image already."""
    if not os.environ.get("SWEREX_HOST"):
        raise SandboxError("set SWEREX_HOST (and SWEREX_PORT, SWEREX_AUTH_TOKEN) to the server of backend 'remote'")
    host, port = os.environ["SWEREX_HOST"], os.environ.get("SWEREX_PORT")
    address = host if "://" in host else f"http://{host}"
    token = os.environ.get("SWEREX_AUTH_TOKEN", "")
    return RemoteSandbox(f"{address}:{port}" if port else address, token, limits)


class RemoteSandbox(Sandbox):
    """A sandbox behind a SWE-ReX server."""

    def __init__(self, address: str, token: str, limits: Limits, *, start_seconds: float = _START_SECONDS) -> None:
        """Wait until the server answers and start the persistent shell.

        Raises:
            SandboxError: If the server does not answer in time.
        """
        self.limits = limits
        self._address, self._token = address, token
        deadline = time.monotonic() + start_seconds
        while not self._alive():
            if time.monotonic() > deadline:
                raise SandboxError(f"no SWE-ReX server answers at {address}")
            time.sleep(0.5)
        self._close_with(_kill, address, token)
        self._start_session()

    def exec(self, command: str, *, stdin: bytes = b"", timeout: float | None = None, session: bool = False) -> Output:
        """See ``Sandbox``."""
        timeout = self.limits.timeout if timeout is None else timeout
        self._put("command", command.encode(errors="replace"))
        try:
            return self._in_session(timeout) if session else self._alone(stdin, timeout)
        except _ServerError as error:
            if session:
                with suppress(_ServerError):
                    self._post("close_session", {"session": _SESSION})
                self._start_session()
            return Output(b"", 1, "timeout" if str(error) == "CommandTimeoutError" else "exited")

    def _in_session(self, timeout: float) -> Output:
        action = {"command": f". {_FILES}/command </dev/null", "session": _SESSION, "timeout": timeout}
        answer = self._post("run_in_session", action | {"check": "silent"}, timeout)
        return self._output(str(answer.get("output", "")).encode(errors="replace"), answer.get("exit_code"))

    def _alone(self, stdin: bytes, timeout: float) -> Output:
        self._put("stdin", stdin)
        # In base64, because the JSON answer cannot contain arbitrary bytes.
        pipeline = (
            f"bash {_FILES}/command <{_FILES}/stdin 2>&1 | head -c {self.limits.output + 1} | base64 -w 0; "
            "exit ${PIPESTATUS[0]}"
        )
        request = {"command": ["bash", "-c", pipeline], "timeout": timeout, "cwd": WORK_TREE}
        answer = self._post("execute", request, timeout)
        try:
            data = base64.b64decode(str(answer.get("stdout", "")))
        except ValueError:
            data = b""
        return self._output(data, answer.get("exit_code"))

    def _output(self, data: bytes, code: Any) -> Output:
        stopped = "output" if len(data) > self.limits.output else ""
        known = isinstance(code, int) and not stopped
        return Output(data[: self.limits.output], code & 255 if known else 1, stopped)

    def _put(self, name: str, data: bytes) -> None:
        self._post("write_file", {"path": f"{_FILES}/{name}64", "content": base64.b64encode(data).decode()})
        decode = f"base64 -d {_FILES}/{name}64 >{_FILES}/{name}"
        self._post("execute", {"command": ["bash", "-c", decode], "timeout": _GRACE})

    def _start_session(self) -> None:
        self._post("create_session", {"session": _SESSION, "startup_timeout": _GRACE})
        start = f"cd {shlex.quote(WORK_TREE)}; stty -echo"
        self._post("run_in_session", {"command": start, "session": _SESSION, "timeout": _GRACE, "check": "silent"})

    def _alive(self) -> bool:
        try:
            return bool(_request(self._address, self._token, "is_alive", None, 5.0).get("is_alive"))
        except SandboxLost:
            return False

    def _post(self, endpoint: str, body: dict[str, Any], timeout: float = _GRACE) -> dict[str, Any]:
        return _request(self._address, self._token, endpoint, body, timeout + _GRACE)


def _request(
    address: str, token: str, endpoint: str, body: dict[str, Any] | None, timeout: float, largest: int = 2**27
) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "X-API-Key": token}
    request = urllib.request.Request(f"{address}/{endpoint}", data, headers)
    try:
        with _OPENER.open(request, timeout=timeout) as response:
            answer = json.loads(response.read(largest))
    except urllib.error.HTTPError as error:
        if error.code != _ERROR:
            raise SandboxLost(f"the server at {address} refused {endpoint}: {error}") from error
        with error:
            raise _ServerError(_kind(error.read(largest))) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise SandboxLost(f"the server at {address} did not answer {endpoint}: {error}") from error
    if not isinstance(answer, dict):
        raise SandboxLost(f"the server at {address} answered {endpoint} with {str(answer)[:80]!r}")
    return answer


def _kind(body: bytes) -> str:
    try:
        return str(json.loads(body)["swerexception"]["class_path"]).rpartition(".")[2]
    except (ValueError, TypeError, LookupError):
        return ""


def _kill(address: str, token: str) -> None:
    with suppress(SandboxLost):
        _request(address, token, "execute", {"command": ["bash", "-c", "kill -KILL -1"], "timeout": 1.0}, _GRACE)
