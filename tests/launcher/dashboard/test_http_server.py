"""The server as an unfriendly network meets it: real sockets, real requests."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from launcher.dashboard.access import HEADERS, Access
from launcher.dashboard.http_server import FILES, DashboardServer
from launcher.errors import UsageError
from tests.launcher.dashboard.moments import broken, moment

KEY = "0123456789abcdef0123456789abcdef"


@contextmanager
def served(access: Access | None = None, host: str = "127.0.0.1") -> Iterator[DashboardServer]:
    from launcher.dashboard.page_state import page_state

    server = DashboardServer(host, 0, access or Access(), lambda: page_state(moment(broken("dead"))))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def local() -> Iterator[DashboardServer]:
    with served() as server:
        yield server


def ask(
    server: DashboardServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request(
            method, path, headers={name.replace("_", "-"): text for name, text in headers.items()}
        )
        reply = connection.getresponse()
        return reply.status, reply.read(), dict(reply.getheaders())
    finally:
        connection.close()


@pytest.mark.parametrize("path", [*FILES, "/api/state"])
def test_every_file_and_the_state_come_with_the_strict_headers(local: DashboardServer, path: str) -> None:
    status, body, headers = ask(local, path)
    assert status == 200 and body
    assert HEADERS.items() <= headers.items() and "Access-Control-Allow-Origin" not in headers
    assert ask(local, path, "HEAD")[:2] == (200, b"")


def test_no_file_needs_the_network_or_inline_code(local: DashboardServer) -> None:
    for path in FILES:
        text = ask(local, path)[1].decode()
        assert "https://" not in text and "@import" not in text and "innerHTML" not in text, path
        assert text.replace("http://www.w3.org/2000/svg", "").count("http://") == 0, path
    page = ask(local, "/")[1].decode()
    assert "<style" not in page and "onclick" not in page and page.count("<script") == 1


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
def test_nothing_but_reading(local: DashboardServer, method: str) -> None:
    status, _, headers = ask(local, "/api/state", method)
    assert status == 405 and headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "path", ["/../http_server.py", "//etc/passwd", "/static/index.html", "/%2e%2e/x", "/api", "*"]
)
def test_no_other_path_exists(local: DashboardServer, path: str) -> None:
    assert ask(local, path)[0] == 404


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "10.0.0.7:80", "", "127.0.0.1@x", "[::1"]
)
def test_a_foreign_host_name_is_refused(local: DashboardServer, host: str) -> None:
    status, body, _ = ask(local, "/api/state", Host=host)
    assert status == 421 and b"sparkctl dashboard --name" in body


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9000", "127.0.0.1:1", "[::1]:8899"])
def test_a_tunnel_may_have_any_port(local: DashboardServer, host: str) -> None:
    assert ask(local, "/api/state", Host=host)[0] == 200


def test_two_host_headers_or_none_are_refused(local: DashboardServer) -> None:
    for hosts in ("Host: localhost\r\nHost: localhost\r\n", ""):
        with socket.create_connection(("127.0.0.1", local.port), timeout=60) as raw:
            raw.sendall(f"GET /api/state HTTP/1.0\r\n{hosts}\r\n".encode())
            assert b" 421 " in raw.recv(100)


def test_a_key_is_needed_for_the_state_and_only_as_a_header() -> None:
    with served(Access(key=KEY, names=("head.lan",))) as server:
        assert ask(server, "/")[0] == 200
        refused = ask(server, "/api/state")
        assert refused[0] == 401 and refused[2]["WWW-Authenticate"] == "Bearer"
        for wrong in (f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Basic {KEY}", KEY, "Bearer "):
            assert ask(server, "/api/state", Authorization=wrong)[0] == 401
        assert ask(server, f"/api/state?key={KEY}")[0] == 401
        status, body, _ = ask(server, "/api/state", Authorization=f"Bearer {KEY}", Host="head.lan:8899")
        assert status == 200 and json.loads(body)["runs"][0]["verdict"] == "dead"
        assert ask(server, "/", Host="10.0.0.7:80")[0] == 200 and ask(server, "/", Host="other.lan")[0] == 421


def test_a_taken_port_is_refused_with_the_next_command(local: DashboardServer) -> None:
    with pytest.raises(UsageError, match=r"must be able to listen on 127\.0\.0\.1 port") as refused:
        DashboardServer("127.0.0.1", local.port, Access(), dict)
    assert "--port 0" in refused.value.hint


def test_a_failing_state_is_told_and_the_server_lives(capsys: pytest.CaptureFixture[str]) -> None:
    with served() as server:
        server.read_state = lambda: {"bad": float("nan")}
        status, body, _ = ask(server, "/api/state")
        assert status == 500 and b"unexpected ValueError" in body
        assert ask(server, "/")[0] == 200
    assert "ValueError" in capsys.readouterr().err
