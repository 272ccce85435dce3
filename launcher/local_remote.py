"""A node that is this machine: the same interface as SSH, over subprocess and without a shell."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from launcher.command_end import describe_end, line_too_long, output_too_long, timed_out
from launcher.errors import NodeFailed
from launcher.line_reader import MAX_LINE_BYTES, LineReader
from launcher.output_capture import MAX_OUTPUT_BYTES, OutputCapture
from launcher.remote import RemoteResult

STDERR_TAIL_BYTES = 64 << 10
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # what a login shell answers over SSH


class LocalRemote:
    """Commands start in the home folder and in a session of their own, as they do under sshd."""

    is_local = True

    def __init__(self, node: str, *, max_output_bytes: int = MAX_OUTPUT_BYTES) -> None:
        self.node = node
        self._max_output_bytes = max_output_bytes

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0) -> RemoteResult:
        deadline = time.monotonic() + timeout_s
        try:
            process = _start(argv)
        except FileNotFoundError:
            return RemoteResult(exit_status=NOT_FOUND, stdout=b"", stderr=f"{argv[0]}: not found\n".encode())
        except PermissionError:
            text = f"{argv[0]}: permission denied\n"
            return RemoteResult(exit_status=NOT_EXECUTABLE, stdout=b"", stderr=text.encode())
        cut = partial(_kill_session, process)
        stdout = _capture(process.stdout, self._max_output_bytes, on_overflow=cut)
        stderr = _capture(process.stderr, self._max_output_bytes, on_overflow=cut)
        threading.Thread(target=_feed, args=(process.stdin, stdin, True), daemon=True).start()
        finished = False
        try:
            finished = all(capture.join(deadline - time.monotonic()) for capture in (stdout, stderr))
            finished = finished and _wait(process, deadline - time.monotonic())
        finally:
            if not finished:
                _kill_session(process)
                process.wait()
        if stdout.overflowed or stderr.overflowed:
            raise output_too_long(self.node, argv, self._max_output_bytes)
        if not finished:
            raise timed_out(self.node, argv, timeout_s)
        status = _exit_status(process)
        return RemoteResult(exit_status=status, stdout=stdout.data(), stderr=stderr.data())

    def stream(self, argv: Sequence[str], *, stdin: bytes = b"") -> LocalStream:
        try:
            process = _start(argv)
        except OSError as error:
            raise NodeFailed(
                f"{argv[0]} must start, got {error.strerror} (stream).",
                hint=f"try it by hand: command -v {argv[0]}",
                node=self.node,
            ) from error
        return LocalStream(self.node, process, stdin)

    def close(self) -> None:
        """Nothing is kept open between calls."""


class LocalStream:
    """A running command; see RemoteStream."""

    def __init__(self, node: str, process: subprocess.Popen[bytes], stdin: bytes) -> None:
        self._node = node
        self._process = process
        self._closed = threading.Event()
        stdout = process.stdout
        self._lines = LineReader(_read_from(stdout), at_end=partial(_close_pipe, stdout))
        self._stderr = _capture(process.stderr, STDERR_TAIL_BYTES, keep_tail=True)
        threading.Thread(target=_feed, args=(process.stdin, stdin, False), daemon=True).start()
        threading.Thread(target=process.wait, daemon=True).start()

    def read_line(self, timeout_s: float) -> bytes | None:
        try:
            return self._lines.next_line(timeout_s)
        except EOFError:
            if self._lines.overflowed:
                raise line_too_long(self._node, MAX_LINE_BYTES) from None
            raise EOFError(self._how_it_ended()) from None

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        self._lines.stop()
        _close_pipe(self._process.stdin)

    def _how_it_ended(self) -> str:
        _wait(self._process, 0.0 if self._closed.is_set() else 1.0)
        if self._process.returncode is None:
            return "the command closed its output"
        self._stderr.join(0.2)
        return describe_end(_exit_status(self._process), self._stderr.data())


def _start(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    home = Path.home()
    cwd = home if home.is_dir() else Path("/")
    return subprocess.Popen(
        list(argv), stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, cwd=cwd, bufsize=0
    )


def _capture(
    pipe: IO[bytes] | None,
    limit_bytes: int,
    *,
    keep_tail: bool = False,
    on_overflow: Callable[[], None] = lambda: None,
) -> OutputCapture:
    return OutputCapture(
        _read_from(pipe),
        limit_bytes=limit_bytes,
        keep_tail=keep_tail,
        at_end=partial(_close_pipe, pipe),
        on_overflow=on_overflow,
    )


def _read_from(pipe: IO[bytes] | None) -> Callable[[int], bytes]:
    assert pipe is not None
    fd = pipe.fileno()
    return lambda num_bytes: os.read(fd, num_bytes)


def _feed(pipe: IO[bytes] | None, data: bytes, close: bool) -> None:
    assert pipe is not None
    view = memoryview(data)
    try:
        while view:
            view = view[pipe.write(view[: 1 << 16]) :]
    except (BrokenPipeError, ValueError):
        return  # the command ended, or we closed, before reading it all: no error, as in a shell pipe
    finally:
        if close:
            _close_pipe(pipe)


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    try:
        process.wait(max(0.0, timeout_s))
        return True
    except subprocess.TimeoutExpired:
        return False


def _exit_status(process: subprocess.Popen[bytes]) -> int:
    assert process.returncode is not None
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _close_pipe(pipe: IO[bytes] | None) -> None:
    with contextlib.suppress(OSError, ValueError):
        if pipe is not None:
            pipe.close()
