"""Plots of a summary as SVG: the same summary gives the same bytes with the same matplotlib."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from launcher.results.reference import ReferenceRow
from launcher.results.run_directory import PLOTS
from launcher.results.summary import CellSummary, Percentiles, Summary

_SIZE_INCHES = (6.4, 4.0)
MAX_SERIES = 12
# Prompts of one kind differ by some tokens; that is no dependence on context. Other suites choose theirs.
_CONTEXT_RANGE, _CHOSEN_CONTEXT_RANGE = 4, 1.5
_CHOOSE_NO_CONTEXT = ("decode", "soak")
# Their cases are what is compared: a wait there comes from other requests, or from the cache, not the length.
_CASES_TELL = ("mixed", "prefix")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    path: str
    title: str
    svg: str


def draw_plots(summary: Summary, references: Sequence[ReferenceRow]) -> tuple[Plot, ...]:
    """Those that the summary has figures for. `references` are of the run's own protocol."""
    import matplotlib

    drawn = []
    # Text as text keeps a page readable and small; the salt makes the ids of clip paths repeatable.
    settings = {
        "svg.hashsalt": "sparkctl",
        "svg.fonttype": "none",
        "text.parse_math": False,
        "axes.grid": True,
        "grid.alpha": 0.3,
    }
    with matplotlib.rc_context(settings):
        for suite in sorted({cell.suite for cell in summary.cells}):
            cells = [cell for cell in summary.cells_to_read() if cell.suite == suite]
            drawn += [
                _throughput(suite, cells, references),
                _waits(suite, cells) if suite in _CASES_TELL else _ttft(suite, cells, references),
                _latencies(suite, cells),
            ]
    return tuple(plot for plot in drawn if plot is not None)


def _throughput(suite: str, cells: Sequence[CellSummary], references: Sequence[ReferenceRow]) -> Plot | None:
    """Tokens a second over concurrency, all streams together; the bars span the rounds."""
    series: dict[str, list[CellSummary]] = defaultdict(list)
    for cell in cells:
        if cell.aggregate_tokens_per_s is not None:
            series[cell.case].append(cell)
    if not any(len(found) > 1 for found in series.values()):
        return None
    figure, axes = _axes(f"{suite}: throughput", "concurrency", "tokens/s, all streams together")
    for case, found in sorted(series.items())[:MAX_SERIES]:
        spreads = [cell.aggregate_tokens_per_s for cell in found if cell.aggregate_tokens_per_s is not None]
        axes.errorbar(
            [cell.concurrency for cell in found],
            [spread.median for spread in spreads],
            yerr=[
                [spread.median - spread.min for spread in spreads],
                [spread.max - spread.median for spread in spreads],
            ],
            marker="o",
            capsize=3,
            label=case,
        )
    rows = [row for row in references if row.metric == "aggregate_tokens_per_s" and row.case in series]
    _draw_references(axes, rows, lambda row: row.concurrency)
    axes.set_xscale("log", base=2)
    return _finish(figure, axes, f"{suite}-throughput", f"{suite}: throughput over concurrency")


def _ttft(suite: str, cells: Sequence[CellSummary], references: Sequence[ReferenceRow]) -> Plot | None:
    """First token over the length of the prompt, at the smallest concurrency; the bars span the rounds."""
    lowest = min(cell.concurrency for cell in cells)
    found = [
        (cell.prompt_tokens.median, cell.ttft_round_s)
        for cell in cells
        if cell.concurrency == lowest and cell.prompt_tokens is not None and cell.ttft_round_s is not None
    ]
    found.sort(key=lambda item: item[0])
    least_range = _CONTEXT_RANGE if suite in _CHOOSE_NO_CONTEXT else _CHOSEN_CONTEXT_RANGE
    if not found or found[-1][0] < least_range * found[0][0]:
        return None
    figure, axes = _axes(f"{suite}: time to first token, C{lowest}", "prompt tokens", "seconds")
    axes.errorbar(
        [tokens for tokens, _ in found],
        [spread.median for _, spread in found],
        yerr=[
            [spread.median - spread.min for _, spread in found],
            [spread.max - spread.median for _, spread in found],
        ],
        marker="o",
        capsize=3,
        linestyle="none",
        label="this run",
    )
    rows = [row for row in references if row.metric == "ttft_s" and row.context_tokens is not None]
    _draw_references(axes, rows, lambda row: row.context_tokens)
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    return _finish(figure, axes, f"{suite}-ttft", f"{suite}: time to first token over context")


def _waits(suite: str, cells: Sequence[CellSummary]) -> Plot | None:
    found = [(cell, cell.ttft_s) for cell in cells if cell.ttft_s is not None]
    return _shares(found, f"{suite}-ttft", f"{suite}: time to first token")


def _latencies(suite: str, cells: Sequence[CellSummary]) -> Plot | None:
    found = [(cell, cell.itl_s) for cell in cells if cell.itl_s is not None]
    return _shares(found, f"{suite}-latency", f"{suite}: time between tokens")


def _shares(found: Sequence[tuple[CellSummary, Percentiles]], name: str, title: str) -> Plot | None:
    """Median, p90 and p99 by case and concurrency."""
    found = found[: 3 * MAX_SERIES]
    if not found:
        return None
    figure, axes = _axes(title, "", "milliseconds")
    for share, marker in (("p50", "o"), ("p90", "^"), ("p99", "x")):
        axes.plot(
            range(len(found)),
            [getattr(seconds, share) * 1e3 for _, seconds in found],
            linestyle="none",
            marker=marker,
            label=share,
        )
    names = [f"{cell.case} C{cell.concurrency}" for cell, _ in found]
    axes.set_xticks(range(len(found)), names, rotation=60, ha="right", fontsize=7)
    axes.set_ylim(bottom=0)
    return _finish(figure, axes, name, title)


def _draw_references(axes: Any, rows: Sequence[ReferenceRow], place: Any) -> None:
    """Hollow grey marks that say third-party, so that nobody takes them for the run's own."""
    groups: dict[str, list[ReferenceRow]] = defaultdict(list)
    for row in rows:
        groups[f"third-party: {row.who}, {row.case}, {row.num_nodes} nodes"].append(row)
    for number, (name, own) in enumerate(sorted(groups.items())[:MAX_SERIES]):
        axes.plot(
            [place(row) for row in own],
            [row.value for row in own],
            linestyle=":",
            marker="sDv^<>ph*"[number % 9],
            markerfacecolor="none",
            color="0.45",
            label=name,
        )


def _axes(title: str, x: str, y: str) -> tuple[Any, Any]:
    # Not pyplot: it has a global state and looks for a display.
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.subplots()
    axes.set(title=title, xlabel=x, ylabel=y)
    return figure, axes


def _finish(figure: Any, axes: Any, name: str, title: str) -> Plot:
    from matplotlib.ticker import ScalarFormatter

    if axes.get_xscale() == "log":
        axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.legend(fontsize=7)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return Plot(path=f"{PLOTS}/{name}.svg", title=title, svg=text.getvalue())
