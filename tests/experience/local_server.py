"""An HTTP server in a thread of the test process, which keeps its port across `stop` and `start`."""

import socket
import threading
import time

import uvicorn
from starlette.applications import Starlette


class LocalServer:
    def __init__(self, app: Starlette) -> None:
        self._app = app
        # It never listens, so that connections are refused while the server is stopped; but nobody else gets its port.
        self._reserved = _bound(0)
        self._port = self._reserved.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._server = uvicorn.Server(uvicorn.Config(self._app, log_level="critical", lifespan="off"))
        listening = _bound(self._port)  # closed by the server when it ends
        self._thread = threading.Thread(target=self._server.run, args=([listening],), daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the server has not started"
            time.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound
