"""Serve the page: GET and HEAD only, a fixed set of files, and the state as JSON. Standard library."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from launcher.dashboard.access import HEADERS, Access
from launcher.errors import UsageError

STATIC = Path(__file__).parent / "static"
# Path -> file and type. Nothing else is ever opened.
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/dashboard.css": ("dashboard.css", "text/css; charset=utf-8"),
    "/dashboard.js": ("dashboard.js", "text/javascript; charset=utf-8"),
    "/elements.js": ("elements.js", "text/javascript; charset=utf-8"),
    "/figures.js": ("figures.js", "text/javascript; charset=utf-8"),
    "/sparkline.js": ("sparkline.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
STATE = "/api/state"
# A browser uses a handful; more are refused, so that nobody fills the launcher's machine with threads.
MAX_CONNECTIONS = 32
REQUEST_TIMEOUT_S = 10.0

ReadState = Callable[[], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: HTTPStatus
    body: bytes
    kind: str = "text/plain; charset=utf-8"


@cache
def static_file(name: str) -> bytes:
    return (STATIC / name).read_bytes()


def make_reply(path: str, hosts: list[str], authorization: str | None, access: Access,
               read_state: ReadState) -> Reply:  # fmt: skip
    """Pure but for the files and the state. `hosts`: the values of all Host headers."""
    if len(hosts) != 1 or not access.may_use_host(hosts[0]):
        text = b"Ask for this page by address or as localhost; other names: sparkctl dashboard --name NAME\n"
        return Reply(status=HTTPStatus.MISDIRECTED_REQUEST, body=text)
    path = path.partition("?")[0]
    if path in FILES:
        name, kind = FILES[path]
        return Reply(status=HTTPStatus.OK, body=static_file(name), kind=kind)
    if path != STATE:
        return Reply(status=HTTPStatus.NOT_FOUND, body=b"There is no such page.\n")
    if not access.may_read(authorization):
        return Reply(status=HTTPStatus.UNAUTHORIZED, body=b"A key is needed.\n")
    body = json.dumps(read_state(), allow_nan=False, separators=(",", ":")).encode()
    return Reply(status=HTTPStatus.OK, body=body, kind="application/json")


class DashboardServer(ThreadingHTTPServer):
    """Listens from its creation on; `serve_forever` answers. Raises UsageError when it cannot listen."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, access: Access, read_state: ReadState) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.access = access
        self.read_state = read_state
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise UsageError(
                f"the dashboard must be able to listen on {host} port {port}, got: {error.strerror}",
                hint="sparkctl dashboard --port 0 takes a free port",
            ) from error

    def server_bind(self) -> None:
        """Without the name look-up of the standard library, which can hang without a network."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that goes away in the middle is nobody's error; others are told by the page itself."""


class _Handler(BaseHTTPRequestHandler):
    server: DashboardServer
    timeout = REQUEST_TIMEOUT_S
    server_version = "sparkctl"
    sys_version = ""

    def do_GET(self) -> None:
        self._send(self._reply(), with_body=True)

    def do_HEAD(self) -> None:
        self._send(self._reply(), with_body=False)

    def _reply(self) -> Reply:
        hosts = self.headers.get_all("Host") or []
        authorization = self.headers.get("Authorization")
        try:
            return make_reply(self.path, hosts, authorization, self.server.access, self.server.read_state)
        except Exception as error:  # noqa: BLE001  # a thread's edge: the page tells it
            text = f"unexpected {type(error).__name__}; see the terminal of sparkctl dashboard\n"
            self.log_failure(error)
            return Reply(status=HTTPStatus.INTERNAL_SERVER_ERROR, body=text.encode())

    def _send(self, reply: Reply, *, with_body: bool) -> None:
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.kind)
        self.send_header("Content-Length", str(len(reply.body)))
        if reply.status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        if with_body:
            self.wfile.write(reply.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Also what the standard library refuses: other methods, a line too long. Echoes nothing."""
        self.close_connection = True
        status = HTTPStatus(code)
        # It says "not implemented" of a method that it has no function for.
        if status == HTTPStatus.NOT_IMPLEMENTED:
            status = HTTPStatus.METHOD_NOT_ALLOWED
        self._send(Reply(status=status, body=f"{status.phrase}\n".encode()), with_body=True)

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if self._is_refused_method():
            self.send_header("Allow", "GET, HEAD")
        super().end_headers()

    def _is_refused_method(self) -> bool:
        return getattr(self, "command", None) not in ("GET", "HEAD", None)

    def log_failure(self, error: Exception) -> None:
        import sys
        import traceback

        traceback.print_exception(error, file=sys.stderr)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing for each request."""
