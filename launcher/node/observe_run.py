"""Tell the launcher every few seconds how a run is: its processes and state, and the engine's /metrics.

Lines: {"run": {...} or null, "metrics": {"status", "body"} or {"failed": reason}}. Ends when the launcher
closes stdin. Reads only, and holds nothing of the run.
"""

from __future__ import annotations

import os
import select
import sys
from typing import Any

from launcher.node.answer import answer
from launcher.node.http_request import http_request
from launcher.node.list_runs import describe_run
from launcher.node.run_dir import runs_root

# A busy engine answers late; a frozen one never.
METRICS_TIMEOUT_S = 5.0


def observe_run(*, state_path: str, run_id: str, period_s: float, host: str, port: int,
                api_key: str | None = None) -> None:  # fmt: skip
    """Blocks until stdin closes."""
    run_dir = runs_root(state_path) / run_id
    while True:
        run = describe_run(run_dir) if run_dir.is_dir() else None
        answer({"run": run, "metrics": _metrics(run, host, port, api_key)})
        if select.select([sys.stdin], [], [], period_s)[0] and os.read(sys.stdin.fileno(), 4096) == b"":
            return


def _metrics(run: dict[str, Any] | None, host: str, port: int, api_key: str | None) -> dict[str, Any]:
    if run is None or run["status"] != "running":
        return {"failed": "the engine does not run"}
    return http_request(
        host=host,
        port=port,
        method="GET",
        path="/metrics",
        api_key=api_key,
        request_timeout_s=METRICS_TIMEOUT_S,
    )
