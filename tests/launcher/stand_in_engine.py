"""Stands in for the engine in the supervisor's own tests: engine-like lines, a child titled as a scheduler.

argv: the words of MODES below. Run by tests/launcher/test_node_supervisor.py only; the real engine is in
tests/cluster.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

CHILD = "import time\nwhile True: time.sleep(60)"
# Holds a file in /dev/shm mapped, as the engine does.
HOLDER = (
    "import mmap, sys, time\n"
    "file = open('/dev/shm/' + sys.argv[1], 'w+b')\n"
    "file.write(bytes(4096)); file.flush()\n"
    "held = mmap.mmap(file.fileno(), 4096)\n"
    "file.close()\n"
    "while True: time.sleep(60)"
)


def child(title: str, code: str, *argv: str, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([title, "-I", "-S", "-c", code, *argv], executable=sys.executable, **options)  # type: ignore[call-overload,no-any-return]


def say(text: str) -> None:
    print(f"[2026-01-01 00:00:00] {text}", flush=True)


def main(words: list[str]) -> int:
    say("Init parallel begin.")
    scheduler = child("sglang::scheduler_TP0", CHILD)
    if "setsid" in words:  # a session of its own and nothing of the run in its environment
        child("sglang::detokenizer", CHILD, start_new_session=True, env={})
    if "orphan" in words:  # its parent is gone at once
        code = "import subprocess as s, sys; s.Popen([sys.executable, '-c', *sys.argv[1:]], process_group=0)"
        subprocess.run([sys.executable, "-c", code, CHILD], check=True)
    for word in words:
        if word.startswith("shm="):
            child("sglang::detokenizer", HOLDER, word[4:])
        if word.startswith("print="):
            file = Path(word[6:])
            text = file.read_bytes()
            file.unlink()
            for start in range(0, len(text), 7):
                os.write(1, text[start : start + 7])
    if "ignore-term" in words:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "exit-0" in words:
        time.sleep(1)
        scheduler.kill()
        say("bye")
        return 0
    if "exit-3" in words:
        time.sleep(1)
        say("ValueError: a reason")
        return 3
    if "die-unseen" in words:  # the scheduler dies before the supervisor looked once
        scheduler.kill()
        scheduler.wait()
        say("RuntimeError: Rank 0 scheduler died during initialization (exit code: -9).")
        return 1
    if "worker" in words:  # ends by itself with 0 when its scheduler is killed, as SGLang's workers do
        scheduler.wait()
        return 0
    while True:
        time.sleep(60)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
