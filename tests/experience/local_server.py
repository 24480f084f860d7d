"""An HTTP server in a thread of the test process, which keeps its port across `stop` and `start`."""

import socket
import threading
import time

import uvicorn
from starlette.applications import Starlette


class LocalServer:
    def __init__(self, app: Starlette) -> None:
        self._app = app
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        config = uvicorn.Config(self._app, host="127.0.0.1", port=self._port, log_level="critical", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), f"another process has taken port {self._port}"
            time.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()
