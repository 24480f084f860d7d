"""In the place of vLLM's server, with those of its options that ``--local`` of a command gives.

A model called ``broken`` cannot be served. ``--note FILE`` is where it writes the number of its process.
"""

import argparse
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

parser = argparse.ArgumentParser()
for name in ("model", "served-model-name", "host", "note"):
    parser.add_argument(f"--{name}", required=True)
parser.add_argument("--port", type=int, required=True)
options = parser.parse_args()
Path(options.note).write_text(str(os.getpid()))
if options.model == "broken":
    print("loading …")
    sys.exit("OSError: broken is no model\n")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        known = self.path == "/v1/chat/completions" and asked["model"] == options.served_model_name
        text = '<answer>[{"operation": "add", "title": "iron vault", "content": "left first"}]</answer>'
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        answer = {"id": "1", "object": "chat.completion", "created": 0, "model": asked["model"], "choices": [choice]}
        body = json.dumps(answer).encode()
        self.send_response(200 if known else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


ThreadingHTTPServer((options.host, options.port), Handler).serve_forever()
