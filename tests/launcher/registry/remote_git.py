"""Real git servers on loopback: sshd with a key of its own, and git's own http-backend behind TLS."""

from __future__ import annotations

import os
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import create_connection
from urllib.parse import urlsplit

from tests.cluster.leftovers import free_ports
from tests.hosts.ssh_files import known_hosts_line, make_key, write_sshd_config

SSHD = "/usr/sbin/sshd"


@contextmanager
def ssh_server(folder: Path) -> Iterator[tuple[int, str]]:
    """(port, GIT_SSH_COMMAND of a client with the right key)."""
    folder.mkdir()
    port = free_ports(1)
    host_key, key = make_key(folder / "host_key"), make_key(folder / "client_key")
    (folder / "authorized_keys").write_bytes(Path(f"{key}.pub").read_bytes())
    (folder / "known_hosts").write_text(known_hosts_line("127.0.0.1", port, Path(f"{host_key}.pub")))
    write_sshd_config(folder, address="127.0.0.1", port=port)
    # sshd wants /run/sshd, which only an installed service has: a /run of its own holds it.
    script = f"mount -t tmpfs none /run && mkdir /run/sshd && exec {SSHD} -D -e -f {folder}/sshd_config"
    command = ["unshare", "--mount", "sh", "-c", script]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as server:
        try:
            _await(port, folder / "log")
            options = ("BatchMode=yes", "IdentitiesOnly=yes", f"UserKnownHostsFile={folder}/known_hosts")
            yield port, f"ssh -F /dev/null -i {key} " + " ".join(f"-o {option}" for option in options)
        finally:
            server.terminate()


def _await(port: int, log: Path) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)


@contextmanager
def https_server(folder: Path, root: Path) -> Iterator[tuple[int, Path]]:
    """(port, certificate). Serves the repositories below `root` at https://localhost:PORT/, pushes too."""
    folder.mkdir()
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
         "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip

    class Handler(_GitHandler):
        repositories = root

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1], cert
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _GitHandler(BaseHTTPRequestHandler):
    """git http-backend speaks CGI."""

    repositories: Path

    def log_message(self, *words: object) -> None:
        pass

    def do_GET(self) -> None:
        self._run_backend(b"")

    def do_POST(self) -> None:
        self._run_backend(self.rfile.read(int(self.headers["Content-Length"] or 0)))

    def _run_backend(self, body: bytes) -> None:
        parts = urlsplit(self.path)
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(self.repositories), "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_PROJECT_ROOT": str(self.repositories), "PATH_INFO": parts.path, "QUERY_STRING": parts.query,
            "REQUEST_METHOD": self.command, "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)), "REMOTE_USER": "ada",
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }  # fmt: skip
        done = subprocess.run(
            ["git", "http-backend"], input=body, capture_output=True, env=environment, check=False
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        self.send_response(int(fields.pop("Status", "200").split()[0]))
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
