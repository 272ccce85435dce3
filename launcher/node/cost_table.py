"""The cost table of speculation on a node: measured on the head, put where the engine will read it."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from launcher.node.answer import Refused, answer
from launcher.node.run_dir import runs_root, write_file


def measure_table(*, state_path: str, run_id: str, argv: list[str], environment: dict[str, str],
                  key: str | None, timeout_s: float) -> None:  # fmt: skip
    """Streams {"progress": line} and then {"table": text}. argv: the engine's Python, the module that
    measures and its options but for --report and --out; it works beside the engine, on the head."""
    report = runs_root(state_path) / run_id / "reports" / "rank-00.json"
    if not report.is_file():
        raise Refused(f"this node must have the report of rank 0, got none ({report})", "sparkctl audit")
    with tempfile.TemporaryDirectory(prefix="sparkctl-tune-") as folder:
        out = Path(folder) / "table.json"
        secret = {"SPARKCTL_API_KEY": key} if key else {}
        process = subprocess.Popen(
            [
                "timeout",
                "--kill-after",
                "5",
                str(timeout_s),
                *argv,
                "--report",
                str(report),
                "--out",
                str(out),
            ],
            env={**environment, **secret},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        last = ""
        assert process.stderr is not None
        try:
            for line in process.stderr:
                last = line.strip() or last
                answer({"progress": last})
        finally:  # the launcher is gone: nothing may go on measuring
            process.kill()
            process.wait()
        if not out.is_file():
            what = f"timed out after {timeout_s:g} s" if process.returncode == 124 else last
            raise Refused(f"the measurement must give a table, got: {what}", "sparkctl status; sparkctl logs")
        answer({"table": out.read_text()})


def put_table(*, path: str, text: str) -> dict[str, str]:
    """Replaces the table at path, durably, and says what lies there now."""
    place = Path(path)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_file(place, text.encode())
    folder = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return {"hash": str(json.loads(place.read_text())["hash"])}
