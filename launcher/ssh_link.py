"""One authenticated SSH connection: dial (through jump hosts), verify the host key, log in, notice death."""

from __future__ import annotations

import socket
import threading
import time

from launcher.errors import ConnectionLost, NodeUnreachable
from launcher.ssh_errors import explain_ssh_error, unreachable
from launcher.ssh_host_key_check import prefer_known_types, verify_host_key
from launcher.ssh_host_keys import find_known_keys
from launcher.ssh_keys import log_in
from launcher.ssh_paramiko import paramiko
from launcher.ssh_target import SshEndpoint
from launcher.ssh_transport import Transport
from launcher.ssh_watched_socket import WatchedSocket

# Pings unanswered for this many keepalive periods mean a dead link. A loaded node may answer late.
MAX_SILENT_PERIODS = 4


class SshLink:
    """An open connection. `close` ends it and the jump host's under it."""

    def __init__(
        self, end: SshEndpoint, transport: paramiko.Transport, wire: WatchedSocket, via: SshLink | None
    ) -> None:
        self._end = end
        self._transport = transport
        self._wire = wire
        self._via = via
        self._cause: BaseException | None = None
        self._closed = threading.Event()
        threading.Thread(target=self._ping, name=f"ssh-keepalive-{end.node}", daemon=True).start()

    @property
    def alive(self) -> bool:
        return self._transport.is_active()

    def open_session(self) -> paramiko.Channel:
        """New channel for one command. Raises NodeUnreachable or ConnectionLost."""
        try:
            return self._transport.open_session(timeout=self._end.connect_timeout_s)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise self.failed(error) from error

    def failed(self, error: BaseException) -> NodeUnreachable:
        """What `error` on an open link means: the link's own end, or a refusal by the server."""
        return explain_ssh_error(error, self._end) if self.alive else self.lost()

    def ended(self, timeout_s: float) -> bool:
        """Whether the link has ended; waits a moment, because channels end just before it does."""
        deadline = time.monotonic() + timeout_s
        while self.alive and time.monotonic() < deadline:
            time.sleep(0.01)
        return not self.alive

    def lost(self) -> ConnectionLost:
        """The error for work that this link's end cut short."""
        self._transport.join(1.0)  # it notes its exception shortly before it ends
        self._cause = self._transport.get_exception() or self._cause
        if isinstance(self._cause, OSError) and self._cause.strerror:
            got = self._cause.strerror
        else:
            got = "a connection closed by the other end"
        return ConnectionLost(
            f"SSH connection must stay open, got {got} ({self._end.where}).",
            hint=f"check power and cable of the node; then: {self._end.ssh_command('true')}",
            node=self._end.node,
        )

    @property
    def closed_here(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        self._closed.set()
        self._transport.close()
        if self._via is not None:
            self._via.close()

    def _ping(self) -> None:
        """Ask for an answer whenever the other end has been silent for a keepalive period."""
        period_s = self._end.keepalive_s
        while not self._closed.wait(period_s) and self.alive:
            if time.monotonic() - self._wire.last_received < period_s:
                continue
            self._wire.expect_answer()
            try:
                self._transport.global_request("keepalive@openssh.com", wait=True)
            except (paramiko.SSHException, OSError, EOFError):
                return  # the transport ended; whoever uses the link says so


def open_link(end: SshEndpoint) -> SshLink:
    """Connect, verify and log in. Raises NodeUnreachable or one of its subclasses."""
    via = open_link(end.via) if end.via is not None else None
    try:
        return _open(end, via)
    except (paramiko.SSHException, OSError, EOFError, UnicodeError) as error:
        _close(via)
        raise explain_ssh_error(error, end) from error
    except BaseException:
        _close(via)
        raise


def _open(end: SshEndpoint, via: SshLink | None) -> SshLink:
    wire = WatchedSocket(_dial(end, via), MAX_SILENT_PERIODS * end.keepalive_s)
    known = find_known_keys(end.host_key_name, end.known_hosts_files)
    transport: paramiko.Transport | None = None
    try:
        transport = Transport(wire)
        transport.banner_timeout = transport.auth_timeout = end.connect_timeout_s
        transport.handshake_timeout = end.connect_timeout_s
        prefer_known_types(transport, known)
        _shake_hands(transport, end, wire)
        verify_host_key(transport, end, known)
        log_in(transport, end)
    except BaseException:
        wire.close()
        if transport is not None:
            transport.packetizer.complete_handshake()  # else its timer thread holds up our exit
            transport.close()
        raise
    return SshLink(end, transport, wire, via)


def _dial(end: SshEndpoint, via: SshLink | None) -> socket.socket | paramiko.Channel:
    if via is None:
        connection = socket.create_connection((end.host, end.port), timeout=end.connect_timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection
    here = ("127.0.0.1", 0)  # told to the jump host for its log
    timeout_s = end.connect_timeout_s
    try:
        return via._transport.open_channel("direct-tcpip", (end.host, end.port), here, timeout=timeout_s)
    except paramiko.ChannelException as error:
        if error.code == 1:
            must, got = "be reached through its jump host", "forwarding prohibited there"
        else:
            must, got = "accept connections from its jump host", f"{error.text or error}".lower()
        raise unreachable(end, must, got) from error


def _shake_hands(transport: paramiko.Transport, end: SshEndpoint, wire: WatchedSocket) -> None:
    failure: Exception | None = None
    try:
        transport.start_client(timeout=end.connect_timeout_s)
    except (paramiko.SSHException, EOFError) as error:
        failure = error
    # start_client also returns, without a word, when its time is over
    if failure is None and transport.initial_kex_done:
        return
    if wire.greeting and not wire.greeting.startswith(b"SSH-"):
        seen = wire.greeting.decode(errors="replace").splitlines()[0]
        hint = f"is {end.port} the port of sshd? try: {end.ssh_command('true')}"
        raise unreachable(end, "greet with its SSH version", repr(seen), hint=hint) from failure
    if failure is None or isinstance(failure.__context__, TimeoutError):
        raise TimeoutError from failure
    if not wire.greeting:
        raise EOFError from failure
    raise failure


def _close(link: SshLink | None) -> None:
    if link is not None:
        link.close()
