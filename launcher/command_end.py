"""How a command on a node ended, in words. Shared by the SSH and the local connection."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.errors import NodeFailed


def describe_end(exit_status: int, stderr_tail: bytes) -> str:
    """How a streamed command ended, with the last line it wrote to stderr."""
    lines = stderr_tail.decode(errors="replace").strip().splitlines()
    return f"the command ended with status {exit_status}" + (f": {lines[-1]}" if lines else "")


def timed_out(node: str, argv: Sequence[str], timeout_s: float) -> NodeFailed:
    return NodeFailed(
        f"{argv[0]} must end within {timeout_s:g} s, got no end; it was cut off.",
        hint="look at the node's load and memory (top, free -h), then repeat",
        node=node,
    )


def output_too_long(node: str, argv: Sequence[str], limit_bytes: int) -> NodeFailed:
    return NodeFailed(
        f"output of {argv[0]} must be at most {limit_bytes} bytes, got more; it was cut off.",
        hint=f"run it on the node by hand and look at what it writes: {argv[0]}",
        node=node,
    )


def line_too_long(node: str, limit_bytes: int) -> NodeFailed:
    return NodeFailed(
        f"a line from the node must be at most {limit_bytes} bytes, got more.",
        hint="the output is no text; look at the run's log on the node",
        node=node,
    )
