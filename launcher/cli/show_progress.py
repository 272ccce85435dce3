"""Progress of a launch on a terminal (a live table) or in a file (one line a change)."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from launcher.cli.show_error import show_error
from launcher.cluster_view import ClusterView
from launcher.doctor.finding import Finding
from launcher.engine_phase import Phase
from launcher.errors import SparkctlError


class LiveProgress:
    """Everything goes to stderr; stdout stays for the result."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stderr)
        self._live: Live | None = None
        self._shown: dict[str, str] = {}
        self._started = time.monotonic()

    def step(self, text: str) -> None:
        typer.echo(f"[{time.monotonic() - self._started:5.1f} s] {text}", err=True)

    def finding(self, finding: Finding) -> None:
        title = {"warn": "warning", "not checked": f"not checked: {finding.check}"}.get(finding.level)
        if title:
            hint = f"\n  -> {finding.hint}" if finding.hint else ""
            typer.echo(f"{title}: {finding.node}: {finding.message}{hint}", err=True)

    def failure(self, error: SparkctlError) -> None:
        """Tell it at once; what is ended after it may take seconds."""
        self.close()
        show_error(error)
        error.shown = True

    def cluster(self, views: Sequence[ClusterView], elapsed_s: float) -> None:
        if self._console.is_terminal:
            if self._live is None:
                self._live = Live(console=self._console, refresh_per_second=5, transient=True)
                self._live.start()
            self._live.update(progress_table(views, elapsed_s))
            return
        for node in (node for view in views for node in view.nodes.values()):
            if self._shown.get(node.name) != node.text:
                self._shown[node.name] = node.text
                self.step(f"{node.name}: {node.text}")

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __enter__(self) -> LiveProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def progress_table(views: Sequence[ClusterView], elapsed_s: float) -> Table:
    runs = ", ".join(view.plan.run_id for view in views)
    table = Table(title=f"run {runs}  {elapsed_s:.0f} s", title_justify="left")
    for column in ("node", "rank", "phase", "details"):
        table.add_column(column)
    for node in (node for view in views for node in view.nodes.values()):
        done = int(node.tracker.phase) * 100 // int(Phase.READY)
        frozen = " stopped (SIGSTOP)!" if node.state.get("frozen") else ""
        table.add_row(node.name, ",".join(map(str, node.plan.ranks)), f"{done:3d} %", node.text + frozen)
    return table
