"""``comprl bank serve``: serves the bank over MCP, on stdin and stdout or by HTTP.

Owns transport and access. On the loopback interface anybody on this machine may read; elsewhere a token is required.
"""

import argparse
import asyncio
import hmac
import ipaddress
import os
import signal
import socket
import sys
from contextlib import AsyncExitStack, redirect_stdout
from functools import partial
from typing import Any

from verl_comprl.cli.bank.copied import sharing
from verl_comprl.cli.bank.embedder import load_embedder
from verl_comprl.cli.bank.endpoint import connected
from verl_comprl.cli.bank.source import bank_config
from verl_comprl.errors import INTERRUPTED

TOKEN = "COMPRL_MCP_TOKEN"
"""Environment variable with the token that clients must send."""
_SHORTEST_TOKEN = 16
_HOST, _PORT = "127.0.0.1", 8765
_LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")


async def serve(options: argparse.Namespace) -> int:
    """Serve until the client leaves (stdio) or the process is interrupted (HTTP).

    Raises:
        ValueError: If arguments contradict one another, or an address other than the loopback has no token.
        ImportError: If the extra ``mcp`` is missing.
    """
    if bool(options.endpoint) != bool(options.model):
        raise ValueError("--endpoint and --model belong together: the extractor that answers search_and_ask")
    if options.transport == "stdio" and (options.host or options.port is not None):
        raise ValueError("--host and --port are only for --transport http")
    host, token = options.host or _HOST, os.environ.get(TOKEN, "")
    port = _PORT if options.port is None else options.port
    if port > 65535:
        raise ValueError(f"--port {port} must be at most 65535")
    if options.transport == "http":
        _check_access(host, token)
    try:
        from verl_comprl.cli.bank.mcp_server import make_server
    except ImportError as error:
        raise ImportError(f"serving a bank needs MCP 2 ({error}): pip install 'verl-comprl[mcp]'") from error
    async with AsyncExitStack() as stack:
        with redirect_stdout(sys.stderr):  # standard output is the client's
            source = await stack.enter_async_context(sharing(bank_config(options), partial(load_embedder, options)))
            calls = await stack.enter_async_context(connected(options)) if options.endpoint else None
        server = make_server(source, calls)
        if options.transport == "stdio":
            await _serve_stdio(server)
        else:
            await _serve_http(server, host, port, token)
    return 0


async def _serve_stdio(server: Any) -> None:
    # The server reads its input in a thread, which nothing but a line or the end of the input can end.
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, _end)
    if sys.stdin.isatty():
        print(
            "serving MCP on stdin and stdout, for an agent; Ctrl-D ends it, or use --transport http",
            file=sys.stderr,
            flush=True,
        )
    await server.run_stdio_async()


def _end() -> None:
    print("comprl bank: interrupted", file=sys.stderr, flush=True)
    os._exit(INTERRUPTED)  # nothing is lost: the bank is only read


def _check_access(host: str, token: str) -> None:
    if not _is_loopback(host) and len(token) < _SHORTEST_TOKEN:
        raise ValueError(
            f"--host {host} can be reached from other machines: set {TOKEN} to a secret of at least "
            f"{_SHORTEST_TOKEN} characters, which clients send as a bearer token"
        )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _serve_http(server: Any, host: str, port: int, token: str) -> None:
    import uvicorn
    from mcp.server.transport_security import TransportSecuritySettings

    # A web page can make a browser send requests to this machine under a name of its own (DNS rebinding). It cannot
    # know the token, so that names are checked where none is needed.
    shown = f"[{host}]" if ":" in host else host
    names = [*_LOCAL_NAMES, shown]  # the last one may be another address of the loopback interface
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=_is_loopback(host),
        allowed_hosts=[f"{name}:*" for name in names],
        allowed_origins=[f"http://{name}:*" for name in names],
    )
    # The tools keep nothing between requests, and a session that a client leaves would be kept for half an hour.
    app: Any = server.streamable_http_app(host=host, transport_security=security, stateless_http=True)
    if token:
        app = BearerToken(app, token)
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ValueError(f"cannot listen on {shown}:{port}: {error.strerror}") from error
    port = listening.getsockname()[1]  # the system has chosen it if it was 0
    print(
        f"serving MCP at http://{shown}:{port}/mcp" + (", with a token" if token else ""), file=sys.stderr, flush=True
    )
    await uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve(sockets=[listening])


class BearerToken:
    """ASGI middleware that answers 401 to requests without the token."""

    def __init__(self, app: Any, token: str) -> None:
        """Guard ``app``."""
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request on if it has the token."""
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                headers = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
                await send({"type": "http.response.start", "status": 401, "headers": headers})
                await send({"type": "http.response.body", "body": b"a valid bearer token is required\n"})
                return
        await self._app(scope, receive, send)
