"""A node over SSH: run commands, keep one open and read its lines."""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from launcher.command_end import describe_end, line_too_long, output_too_long, timed_out
from launcher.errors import ConnectionLost, NodeFailed
from launcher.line_reader import MAX_LINE_BYTES, LineReader
from launcher.output_capture import MAX_OUTPUT_BYTES, OutputCapture
from launcher.remote import RemoteResult
from launcher.ssh_link import SshLink, open_link
from launcher.ssh_paramiko import paramiko
from launcher.ssh_target import SshTarget, resolve_target

STDERR_TAIL_BYTES = 64 << 10
# Largest SSH packet that every server accepts, less its header.
SEND_BYTES = 32000
# The status follows the end of the output at once, unless the command closed its output and lives on.
STATUS_TIMEOUT_S = 2.0
# A command that has ended reads no more: the server's close, on its way, ends the feeder.
FEEDER_TIMEOUT_S = 1.0


class SshRemote:
    """Connects on first use, and again on the first use after the connection was lost."""

    is_local = False

    def __init__(self, target: SshTarget, *, max_output_bytes: int = MAX_OUTPUT_BYTES) -> None:
        self.node = target.node
        self._target = target
        self._max_output_bytes = max_output_bytes
        self._connect_lock = threading.Lock()
        self._link: SshLink | None = None
        self._num_closes = 0
        self._num_failures = 0
        self._last_failure: Exception | None = None

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0) -> RemoteResult:
        """See Remote.run. `timeout_s` counts from the start of the command, not of the connection."""
        link = self._connect()
        channel = _start(link, argv)
        deadline = time.monotonic() + timeout_s
        finished = False
        try:
            cut, limit_bytes = partial(_cut_off, channel), self._max_output_bytes
            stdout = OutputCapture(channel.recv, limit_bytes=limit_bytes, on_overflow=cut)
            stderr = OutputCapture(channel.recv_stderr, limit_bytes=limit_bytes, on_overflow=cut)
            feeder = _in_thread(partial(_send, channel, stdin, then_eof=True))
            finished = all(capture.join(deadline - time.monotonic()) for capture in (stdout, stderr))
            finished = finished and channel.status_event.wait(max(0.0, deadline - time.monotonic()))
            feeder.join(FEEDER_TIMEOUT_S if finished else 0)
        finally:
            _close(channel) if finished else _cut_off(channel)
        if stdout.overflowed or stderr.overflowed:
            raise output_too_long(self.node, argv, self._max_output_bytes)
        if not finished:
            raise timed_out(self.node, argv, timeout_s)
        status = _exit_status(link, channel, self.node)
        return RemoteResult(exit_status=status, stdout=stdout.data(), stderr=stderr.data())

    def stream(self, argv: Sequence[str], *, stdin: bytes = b"") -> SshStream:
        link = self._connect()
        return SshStream(self.node, link, _start(link, argv), stdin)

    def close(self) -> None:
        """Close the connection; commands still running on the node see the end of their stdin.

        Does not wait for a connection that another thread is opening: that one is closed once open.
        """
        self._num_closes += 1
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _connect(self) -> SshLink:
        num_failures = self._num_failures
        with self._connect_lock:
            # Who waited while another thread tried has its answer: a silent node costs one time-out, not two.
            if self._last_failure is not None and self._num_failures > num_failures:
                raise self._last_failure
            link = self._link
            if link is not None and link.alive:
                return link
            if link is not None:
                link.close()
                self._link = None  # stays so when connecting fails
            num_closes = self._num_closes
            try:
                link = open_link(resolve_target(self._target))
            except Exception as error:
                self._num_failures += 1
                self._last_failure = error
                raise
            self._last_failure = None
            if self._num_closes != num_closes:
                link.close()
                raise ConnectionLost(
                    "SSH connection must stay open, got closed by the launcher while connecting.",
                    hint="repeat the command",
                    node=self.node,
                )
            self._link = link
            return link


class SshStream:
    """A running command; see RemoteStream."""

    def __init__(self, node: str, link: SshLink, channel: paramiko.Channel, stdin: bytes) -> None:
        self._node = node
        self._link = link
        self._channel = channel
        self._closed = threading.Event()
        self._lines = LineReader(channel.recv)
        self._stderr = OutputCapture(channel.recv_stderr, limit_bytes=STDERR_TAIL_BYTES, keep_tail=True)
        _in_thread(partial(_send, channel, stdin, then_eof=False))

    def read_line(self, timeout_s: float) -> bytes | None:
        try:
            return self._lines.next_line(timeout_s)
        except EOFError:
            pass
        if self._lines.overflowed:
            self.close()
            raise line_too_long(self._node, MAX_LINE_BYTES)
        raise self._how_it_ended()

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        self._lines.stop()
        _close(self._channel)

    def _how_it_ended(self) -> Exception:
        if self._closed.is_set() or self._link.closed_here:
            return EOFError("closed by the launcher")
        self._channel.status_event.wait(STATUS_TIMEOUT_S)
        status = self._channel.exit_status
        if status >= 0:
            self._stderr.join(0.2)
            return EOFError(describe_end(status, self._stderr.data()))
        if self._link.ended(1.0):
            return self._link.lost()
        return EOFError("the command closed its output")


def _start(link: SshLink, argv: Sequence[str]) -> paramiko.Channel:
    """Start the command. The login shell splits the line again; shlex.join makes it yield argv."""
    channel = link.open_session()
    try:
        channel.exec_command(shlex.join(argv))
    except (paramiko.SSHException, OSError, EOFError) as error:
        _close(channel)
        raise link.failed(error) from error
    return channel


def _send(channel: paramiko.Channel, data: bytes, *, then_eof: bool) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[channel.send(bytes(view[:SEND_BYTES])) :]
        if then_eof:
            channel.shutdown_write()
    except (OSError, EOFError):
        return  # the command ended without reading it all; its status tells, as in a shell pipe


def _exit_status(link: SshLink, channel: paramiko.Channel, node: str) -> int:
    if channel.exit_status >= 0:
        return channel.exit_status
    if link.ended(1.0):
        raise link.lost()
    raise NodeFailed(
        "a command must end with a status, got none from the SSH server.",
        hint="look at the server's log on the node: journalctl -u ssh -n 20",
        node=node,
    )


def _cut_off(channel: paramiko.Channel) -> None:
    """Ask the server to SIGKILL the command, then close; closing alone would leave it running.

    OpenSSH does not do so for root, whose sessions have no separated process: there the command meets the
    end of its stdin, and SIGPIPE when it writes.
    """
    message = paramiko.Message()
    message.add_byte(paramiko.common.cMSG_CHANNEL_REQUEST)
    message.add_int(channel.remote_chanid)
    message.add_string("signal")
    message.add_boolean(False)
    message.add_string("KILL")
    transport = channel.get_transport()
    if transport.is_active() and not channel.closed:
        with contextlib.suppress(OSError, EOFError):  # the connection just ended, and the pipes with it
            transport._send_user_message(message)  # type: ignore[attr-defined]
    _close(channel)


def _close(channel: paramiko.Channel) -> None:
    with contextlib.suppress(OSError, EOFError):  # the connection ended first
        channel.close()


def _in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name="ssh-stdin", daemon=True)
    thread.start()
    return thread
