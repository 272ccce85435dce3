"""Talk with a child process within bounds: of time, and of what it may say.

`Popen.communicate` keeps whatever comes. A repository of a few kilobytes can make git list files without end
(trees that hold one another many times), so reading stops at the first byte past the limit.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from dataclasses import dataclass, field

_BLOCK_BYTES = 1 << 16


class SaysTooMuch(Exception):
    """One of the two streams has more than the limit."""


@dataclass(slots=True)
class _Talk:
    """What is still to be written, and what was read, by file descriptor."""

    selector: selectors.BaseSelector
    left: memoryview
    heard: dict[int, bytearray] = field(default_factory=dict)


def talk(process: subprocess.Popen[bytes], stdin: bytes, *, timeout_s: float, max_bytes: int) -> list[bytes]:
    """stdout and stderr. Raises TimeoutExpired or SaysTooMuch; the caller then ends the process."""
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    deadline = time.monotonic() + timeout_s
    outputs = (process.stdout.fileno(), process.stderr.fileno())
    with process.stdin, process.stdout, process.stderr, selectors.DefaultSelector() as selector:
        state = _Talk(selector=selector, left=memoryview(stdin))
        os.set_blocking(process.stdin.fileno(), False)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        for output in outputs:
            state.heard[output] = bytearray()
            selector.register(output, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise subprocess.TimeoutExpired(process.args, timeout_s)
            for key, _ in ready:
                if key.fd in state.heard:
                    _read(state, key.fd, max_bytes)
                else:
                    _write(state, process)
        process.wait(max(0.0, deadline - time.monotonic()))
    return [bytes(state.heard[output]) for output in outputs]


def _read(state: _Talk, output: int, max_bytes: int) -> None:
    block = os.read(output, _BLOCK_BYTES)
    if not block:
        state.selector.unregister(output)
    state.heard[output] += block
    if len(state.heard[output]) > max_bytes:
        raise SaysTooMuch


def _write(state: _Talk, process: subprocess.Popen[bytes]) -> None:
    """Closes the stream when all is written, or when the process wants no more."""
    assert process.stdin is not None
    try:
        state.left = state.left[os.write(process.stdin.fileno(), state.left[:_BLOCK_BYTES]) :]
    except BrokenPipeError:
        state.left = memoryview(b"")
    if not state.left:
        state.selector.unregister(process.stdin)
        process.stdin.close()
