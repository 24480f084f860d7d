"""Drives a headless Chromium over its DevTools protocol, for the viewer's tests, benchmark and pictures."""

import base64
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
)
START_SECONDS = 60


def find_chromium() -> str | None:
    """Return the path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class ScriptError(RuntimeError):
    """A script that was evaluated in the page has thrown."""


class Tab:
    """One page. Errors and warnings of its console, and its requests, are kept in ``problems`` and ``requests``."""

    def __init__(self, socket: Any) -> None:
        """Talk over ``socket``."""
        self._socket = socket
        self._number = 0
        self.problems: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Performance.enable", timeDomain="threadTicks")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the result of a DevTools method.

        Raises:
            RuntimeError: If it fails.
        """
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=120))
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                self.problems.append(details.get("exception", {}).get("description", details["text"]))
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                self.problems.append(" ".join(str(item.get("value", item)) for item in parameters["args"]))
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.problems.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')[:80]}")
            case "Network.requestWillBeSent" if not parameters["request"]["url"].startswith(("data:", "blob:")):
                self.requests.append(parameters["request"]["url"])

    def open(self, file: Path, hash: str = "") -> None:
        """Load a file; returns at once."""
        self.call("Page.navigate", url=f"{file.resolve().as_uri()}{hash}")

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression; a promise is waited for.

        Raises:
            ScriptError: If it throws.
        """
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise ScriptError(json.dumps(result["exceptionDetails"])[:2000])
        return result["result"].get("value")

    def wait(self, script: str, seconds: float = 60) -> None:
        """Wait until a JavaScript expression is true.

        Raises:
            TimeoutError: If it stays false.
        """
        end = time.monotonic() + seconds
        while not self.evaluate(f"Boolean({script})"):
            if time.monotonic() > end:
                raise TimeoutError(f"still false after {seconds} s: {script}; problems: {self.problems}")
            time.sleep(0.05)

    def thread_seconds(self) -> float:
        """Return the processor time of the page's main thread since the page was loaded."""
        metrics = self.call("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")

    def size(self, width: int, height: int, scale: float = 1) -> None:
        """Set the window's size in CSS pixels, and how many pixels of the screen one of them is wide."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def scheme(self, name: str) -> None:
        """Set the preferred colour scheme, ``light`` or ``dark``."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def picture(self, file: Path) -> None:
        """Write a screenshot as PNG."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def chromium(path: str | None = None) -> Iterator[Tab]:
    """Start a Chromium with an empty profile and end it again.

    Raises:
        FileNotFoundError: If there is none.
        TimeoutError: If it does not start.
    """
    from websockets.sync.client import connect

    program = path or find_chromium()
    if program is None:
        raise FileNotFoundError(f"no Chromium found; looked for {', '.join(NAMES)}")
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            port = _port(Path(profile) / "DevToolsActivePort", process)
            # Without pings: on a busy machine a tab may answer late, and a call has a limit of its own.
            limits = {"open_timeout": START_SECONDS, "ping_interval": None, "max_size": None}
            with connect(_address(port), proxy=None, **limits) as socket:
                yield Tab(socket)
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _port(file: Path, process: subprocess.Popen) -> int:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        if file.exists() and (lines := file.read_text().splitlines()):
            return int(lines[0])
        time.sleep(0.05)
    raise TimeoutError(f"Chromium did not start within {START_SECONDS} s (exit code {process.poll()})")


def _address(port: int) -> str:
    from http.client import HTTPConnection

    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        connection = HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
        try:
            connection.request("GET", "/json/list")
            targets = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        for target in targets:
            if target["type"] == "page":
                return target["webSocketDebuggerUrl"]
        time.sleep(0.05)
    raise TimeoutError(f"Chromium opened no page within {START_SECONDS} s")
