"""A stand-in for the servers of Weights & Biases, as far as weave needs them to keep calls."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

ENTITY = {"username": "me", "defaultEntity": {"name": "me"}}
ANSWERS = {
    "/graphql": {"data": {"viewer": ENTITY, "project": {"name": "project"}}},
    "/server_info": {"min_required_weave_python_version": "0.0.1", "trace_server_version": "1.0.0"},
    "/obj/create": {"digest": "d" * 43},
    "/file/create": {"digest": "d" * 43},
}
CALLS = "/v2/me/project/calls/complete"


@contextmanager
def trace_server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Serve meanwhile; yields the address and the calls that arrive."""
    calls: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path == CALLS:
                calls.extend(json.loads(body)["batch"])
            self._answer(ANSWERS.get(self.path, {}))

        def do_GET(self) -> None:
            self._answer(ANSWERS.get(self.path, {}))

        def _answer(self, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", calls
        finally:
            server.shutdown()
