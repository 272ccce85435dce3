"""Run one rank of the collective probe with the engine's own Python and environment; stream what it says."""

from __future__ import annotations

import json
import os
import pkgutil
import re
import select
import signal
import subprocess
import time
from typing import Any

from launcher.node.answer import answer

KEPT_LINES = 6
TRANSPORT = re.compile(r"NET/(IB|Socket) : Using|Using network \w+|NET/IB : No device found|via NET/\w+")


def collective(
    *,
    argv: list[Any],
    environment: dict[str, Any],
    settings: dict[str, Any],
    import_limit_s: float,
    limit_s: float,
) -> None:
    """`argv`: the engine's Python, perhaps within docker. Ends the rank when time is up or the launcher
    hangs up. A cold or busy machine imports torch for a minute, which says nothing of the network: until then
    `import_limit_s` holds; then `limit_s`, for meeting the others, and again for the all-reduces.

    Lines: what the rank tells, then {"end": {status, timed_out, seconds, tail, transport}}.
    """
    code = (pkgutil.get_data("launcher.node", "collective_rank.py") or b"").decode()
    started = time.monotonic()
    try:
        rank = subprocess.Popen(
            [*argv, "-c", code, json.dumps(settings)], env=environment, cwd="/", stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        answer({"end": _end(None, False, 0.0, [f"{argv[0]}: {os.strerror(error.errno or 0)}"], [])})
        return
    assert rank.stdout is not None
    said = rank.stdout.fileno()
    tail: list[Any] = []
    transport: list[Any] = []
    timed_out = True
    pending = b""
    deadline = started + import_limit_s
    try:
        while time.monotonic() < deadline:
            readable, _, _ = select.select([0, said], [], [], 0.5)
            if 0 in readable and not os.read(0, 4096):
                return
            if said in readable:
                data = os.read(said, 65536)
                if not data:
                    timed_out = False
                    break
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    if _take(line.decode(errors="replace"), tail, transport) in ("imported", "joined"):
                        deadline = time.monotonic() + limit_s
    finally:
        if timed_out:
            _kill(rank)
        status = rank.wait()
        rank.stdout.close()
    answer({"end": _end(status, timed_out, time.monotonic() - started, tail, transport)})


def _end(
    status: int | None, timed_out: bool, seconds: float, tail: list[Any], transport: list[Any]
) -> dict[str, Any]:
    return {
        "status": status,
        "timed_out": timed_out,
        "seconds": seconds,
        "tail": tail,
        "transport": transport,
    }


def _take(line: str, tail: list[Any], transport: list[Any]) -> str:
    """Passes on what the rank tells, and returns its stage; keeps the last of what others print."""
    if line.startswith('{"probe":'):
        try:
            said = json.loads(line)
            answer(said)
            return str(said["probe"].get("stage"))
        except (ValueError, AttributeError):
            pass
    if TRANSPORT.search(line):
        transport[:] = [*transport, line.strip()[-300:]][:20]
    if line.strip():
        tail[:] = [*tail, line.strip()[:300]][-KEPT_LINES:]
    return ""


def _kill(rank: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(rank.pid, signal.SIGTERM)  # docker's client passes it on to the container
        rank.wait(timeout=2)
    except subprocess.TimeoutExpired:
        os.killpg(rank.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
