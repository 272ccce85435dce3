"""What starts on a node for a request ends when the request never arrives whole, and only then."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.call_node import bootstrap, node_code

ARRIVES_S = 2


@contextmanager
def waiting_program() -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-I", "-S", "-c", bootstrap(ARRIVES_S)]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe) as program:
        try:
            yield program
        finally:
            program.kill()


def test_a_request_that_stops_on_its_way_ends_what_waits_for_it() -> None:
    """As when a cable is pulled: the connection stays open, and nothing more comes."""
    code = node_code()
    for sent in (b"", b"%d\n" % len(code) + code[:1000], b"%d\n" % len(code) + code + b'{"verb": "pro'):
        with waiting_program() as program:
            assert program.stdin and program.stderr
            program.stdin.write(sent)
            program.stdin.flush()
            assert program.wait(60) == 1
            assert f"no whole request within {ARRIVES_S} s" in program.stderr.read().decode()


def test_a_request_that_arrived_may_take_longer(tmp_path: Path) -> None:
    code = node_code()
    request = {
        "verb": "observe",
        "state_path": str(tmp_path),
        "run_id": "none",
        "period_s": 0.2,
        "host": "127.0.0.1",
        "port": 1,
    }
    with waiting_program() as program:
        assert program.stdin and program.stdout
        program.stdin.write(b"%d\n%s%s\n" % (len(code), code, json.dumps(request).encode()))
        program.stdin.flush()
        assert program.stdout.readline(), "no answer"
        answered = time.monotonic()
        while time.monotonic() - answered < ARRIVES_S + 1:
            assert b'"run":null' in program.stdout.readline()
        program.stdin.close()
        assert program.wait(60) == 0
