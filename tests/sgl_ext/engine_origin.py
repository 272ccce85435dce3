"""The process that imports SGLang once and forks an engine for each order.

    python -m tests.sgl_ext.engine_origin

An order is a line of JSON on standard input: {"number": 3, "script": "tests.sgl_ext.run_engine",
"argv": [..], "folder": .., "environment": {..}, "path": [..]}. The script's main() runs in that folder, as a
process of its own session, with its output in the files `stdout` and `stderr` there. Lines of JSON on
standard output tell its pid and, at its end, its exit status, negative for a signal. When standard input
ends, so do the engines.

What a fork inherits is what such a script imports before it builds its engine: sgl_ext's stand-ins and
SGLang. Plugin, settings and model come after that, in each engine anew.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn


def import_engine() -> dict[str, str]:
    """Returns the variables that SGLang has set. Without collection, which frees nothing meanwhile."""
    before = dict(os.environ)
    gc.disable()
    from sgl_ext.stand_ins import add_stand_ins

    add_stand_ins()
    importlib.import_module("sglang.srt.entrypoints.engine")
    gc.freeze()
    gc.enable()
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"a process of {threads} threads cannot fork an engine"
    return {name: value for name, value in os.environ.items() if before.get(name) != value}


def run(order: dict[str, Any], set_by_imports: dict[str, str]) -> NoReturn:
    """In the fork: becomes the process that a test would have started, and ends with it."""
    status = 1
    try:
        os.setsid()
        os.chdir(order["folder"])
        for name, number in (("stdout", 1), ("stderr", 2)):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.clear()
        os.environ.update(order["environment"] | set_by_imports)
        if order["path"]:  # another copy of the plugin, say: none of this one may stay
            for name in [name for name in sys.modules if name.split(".")[0] == "sgl_ext"]:
                del sys.modules[name]
            sys.path[:0] = order["path"]
        sys.argv = [order["script"], *order["argv"]]
        importlib.import_module(order["script"]).main()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001, the end of a process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what an import prints is no answer
    set_by_imports = import_engine()
    running: dict[int, int] = {}
    pending = b""
    while True:
        if select.select([0], [], [], 0.05 if running else None)[0]:
            part = os.read(0, 1 << 20)
            if not part:
                break
            *lines, pending = (pending + part).split(b"\n")
            for order in map(json.loads, lines):
                pid = os.fork()
                if pid == 0:
                    answers.close()
                    run(order, set_by_imports)
                running[pid] = order["number"]
                answers.write(json.dumps({"number": order["number"], "pid": pid}) + "\n")
        while running and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            line = {"number": running.pop(ended[0]), "status": os.waitstatus_to_exitcode(ended[1])}
            answers.write(json.dumps(line) + "\n")
    for pid in running:
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
