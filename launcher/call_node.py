"""Ask a node: sends the node code and a JSON request on stdin, reads JSON lines back.

The command line is the same for every request: `python3 -I -S -c bootstrap()`. The code travels as a zip that
the bootstrap keeps in memory (memfd), so a request leaves nothing on the node.
"""

from __future__ import annotations

import base64
import functools
import io
import json
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from launcher.errors import NodeFailed, PreflightRefused
from launcher.remote import Remote, RemoteStream

PACKAGE = Path(__file__).parent
# Beside launcher/node: the mask of secrets, and the reader of checkpoints with its refusals.
NODE_FILES = (
    "__init__.py",
    "redact.py",
    "errors.py",
    "fit/__init__.py",
    "fit/read_checkpoint.py",
    "fit/safetensors_header.py",
)
# A cable pulled while the request travels resets nothing: without a limit, what waits for the rest of it
# would stay on the node for as long as sshd takes the connection for alive, which is hours.
REQUEST_ARRIVES_S = 45
FIXED_TIME = (1980, 1, 1, 0, 0, 0)

Answer = dict[str, Any]


def bootstrap(arrives_s: int = REQUEST_ARRIVES_S) -> str:
    """What `python3 -c` runs on a node: reads the code and the request from stdin, ends without them."""
    return (
        "import os,signal,sys;"
        f"signal.signal(signal.SIGALRM,lambda *_:sys.exit('no whole request within {arrives_s} s'));"
        f"signal.alarm({arrives_s});"
        "i=sys.stdin.buffer;"
        "z=i.read(int(i.readline()));"
        "f=os.memfd_create('sparkctl-node');"
        "os.write(f,z)==len(z) or sys.exit('short write');"
        "sys.path.insert(0,'/proc/self/fd/%d'%f);"
        "sys.version_info>=(3,10) or sys.exit('Python 3.10 or newer is needed');"
        "from launcher.node.__main__ import main;"
        "sys.exit(main([]))"
    )


@functools.cache
def node_code() -> bytes:
    """The zip of `launcher/node` and what it needs; the same bytes for the same sources."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        files = [PACKAGE / name for name in NODE_FILES] + sorted((PACKAGE / "node").glob("*.py"))
        for path in files:
            name = f"launcher/{path.relative_to(PACKAGE)}"
            archive.writestr(zipfile.ZipInfo(name, FIXED_TIME), path.read_bytes())
        archive.writestr(
            zipfile.ZipInfo("__main__.py", FIXED_TIME),
            "import sys\nfrom launcher.node.__main__ import main\nsys.exit(main(sys.argv[1:]))\n",
        )
    return buffer.getvalue()


def encoded_node_code() -> str:
    return base64.b64encode(node_code()).decode()


def _request(verb: str, values: Mapping[str, object]) -> bytes:
    code = node_code()
    line = json.dumps({"verb": verb, **values}, separators=(",", ":")).encode()
    return b"%d\n%s%s\n" % (len(code), code, line)


def _argv(remote: Remote) -> list[str]:
    """A local node runs this very Python; on others it is whatever python3 is there."""
    python = sys.executable if remote.is_local else "python3"
    return [python, "-I", "-S", "-c", bootstrap()]


def ask_node(remote: Remote, verb: str, *, timeout_s: float = 30.0, **values: object) -> Answer:
    """One request, one answer.

    Raises NodeUnreachable, NodeFailed (the node's code failed), or PreflightRefused (the node refused, with
    hint).
    """
    result = remote.run(_argv(remote), stdin=_request(verb, values), timeout_s=timeout_s)
    lines = result.stdout.splitlines()
    if not lines:
        tail = result.stderr.decode(errors="replace").strip()[-500:]
        raise NodeFailed(
            f"{verb} failed with exit status {result.exit_status}: {tail or 'no output'}",
            hint="the node needs python3 (3.10 or newer) in PATH of a non-interactive shell",
            node=remote.node,
        )
    return checked(remote.node, verb, lines[-1])


def checked(node: str, verb: str, line: bytes) -> Answer:
    """Parse one answer line; an error that the node reports is raised here."""
    try:
        value = json.loads(line)
    except ValueError as error:
        raise NodeFailed(
            f"{verb} answered what is no JSON: {line[:200].decode(errors='replace')!r}",
            hint="something on the node prints into non-interactive shells (~/.bashrc): silence it",
            node=node,
        ) from error
    if isinstance(value, dict) and "error" in value:
        if value.get("refused"):
            refusal = PreflightRefused(value["error"], hint=value.get("hint", ""), node=node)
            refusal.detail = value.get("detail", {})
            raise refusal
        where = value.get("where", "?")
        hint = f"it happened at {where} of sparkctl's node code; look at the node's disk and processes"
        raise NodeFailed(f"{verb} failed: {value['error']}", hint=hint, node=node)
    if not isinstance(value, dict):
        raise NodeFailed(f"{verb} answered {type(value).__name__}, not an object", node=node)
    return value


class NodeStream:
    """Answers of a request that goes on:
    `read(timeout_s)` gives the next, None when none came, EOFError at the end.
    """

    def __init__(self, remote: Remote, verb: str, **values: object) -> None:
        self.node = remote.node
        self._verb = verb
        self._stream: RemoteStream = remote.stream(_argv(remote), stdin=_request(verb, values))

    def read(self, timeout_s: float) -> Answer | None:
        line = self._stream.read_line(timeout_s)
        return None if line is None else checked(self.node, self._verb, line)

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> NodeStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
