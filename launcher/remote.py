"""A connection to one node: run a command, or keep one open and read its lines.

Two implementations: `ssh_remote.SshRemote` (paramiko) and `local_remote.LocalRemote` (this machine).
Values travel on stdin, never inside the command: argv holds constants only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteResult:
    """What a finished command left: exit status (128 + signal when killed) and its two outputs."""

    exit_status: int
    stdout: bytes
    stderr: bytes


class RemoteStream(Protocol):
    """A running command whose stdout is read line by line."""

    def read_line(self, timeout_s: float) -> bytes | None:
        """Next line without its newline; None when none came in `timeout_s`.

        Raises EOFError when the command ended, ConnectionLost when the connection did.
        """
        ...

    def close(self) -> None:
        """Close the channel; the command sees EOF on stdin. Safe to call twice and from another thread."""
        ...


class Remote(Protocol):
    """One node. Opens lazily on first use; safe to use from several threads."""

    node: str
    is_local: bool

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0) -> RemoteResult:
        """Run to the end. Raises NodeUnreachable (or a subclass), or NodeFailed on time-out."""
        ...

    def stream(self, argv: Sequence[str], *, stdin: bytes = b"") -> RemoteStream:
        """Start and return at once; stdin is sent but kept open, so that the command sees our end as EOF."""
        ...

    def close(self) -> None: ...
