"""report.md, report.html and plots/ of a run, from its summary. Needs the extra `report`."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

from launcher.errors import UsageError
from launcher.results.manifest import RunFacts
from launcher.results.reference import ReferenceRow
from launcher.results.run_directory import PLOTS
from launcher.results.summary import CellSummary, Percentiles, Spread, Summary
from launcher.write_file import write_file

LIBRARIES = ("jinja2", "matplotlib")
MARKDOWN, PAGE = "report.md", "report.html"
_NONE = "-"
_MAX_VALUE_CHARS = 200  # the manifest has the whole of it


def missing_libraries() -> tuple[str, ...]:
    """Without them a run is complete but for its report."""
    return tuple(name for name in LIBRARIES if find_spec(name) is None)


def require_libraries() -> None:
    """Raises UsageError with the command that installs them."""
    missing = missing_libraries()
    if missing:
        raise UsageError(
            f"a report needs {' and '.join(missing)}, not installed here",
            hint="pip install 'sparkctl[report]'",
        )


def render_report(
    directory: Path, facts: RunFacts, summary: Summary, references: Sequence[ReferenceRow]
) -> None:
    """Only reference rows of the run's own protocol are shown. The page holds its plots: it works alone."""
    require_libraries()
    from launcher.results.plots import draw_plots

    own = tuple(row for row in references if row.protocol == facts.protocol)
    plots = draw_plots(summary, own)
    _remove_plots(directory / PLOTS)
    if plots:
        (directory / PLOTS).mkdir(exist_ok=True)
    for plot in plots:
        write_file(directory / plot.path, plot.svg)
    values = {
        "facts": facts,
        "suites": _suites(summary.cells_to_read()),
        "checked": {cell.suite for cell in summary.cells if cell.checked},
        "plots": [
            {
                "title": plot.title,
                "path": plot.path,
                "data_url": "data:image/svg+xml;base64," + base64.b64encode(plot.svg.encode()).decode(),
            }
            for plot in plots
        ],
        "references": own,
        "setup": _setup(facts),
        "nodes": summary.nodes,
    }
    for name in (MARKDOWN, PAGE):
        write_file(directory / name, _render(name, values))


def _remove_plots(place: Path) -> None:
    """Of an earlier report: one that this report does not draw would be sealed with it."""
    if place.is_dir():
        for path in place.glob("*.svg"):
            path.unlink()
        if not any(place.iterdir()):
            place.rmdir()


def _render(name: str, values: dict[str, Any]) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=name == PAGE,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
    )
    environment.filters.update(
        spread=format_spread, percentiles=format_percentiles, plain=_plain, cell=_escape_markdown
    )
    return environment.get_template(f"{name}.j2").render(values)


def _suites(cells: Sequence[CellSummary]) -> list[tuple[str, list[CellSummary]]]:
    return [(suite, list(group)) for suite, group in groupby(cells, key=lambda cell: cell.suite)]


def _setup(facts: RunFacts) -> list[tuple[str, str]]:
    rows = [("command", " ".join(facts.command)), ("endpoint", facts.endpoint)]
    rows += [(f"version of {name}", str(value)) for name, value in facts.versions if value is not None]
    rows += [
        (f"engine {name}", str(value)[:_MAX_VALUE_CHARS]) for name, value in sorted(facts.engine_args.items())
    ]
    for node in facts.nodes:
        known = {name: value for name, value in node if name != "node" and value not in (None, ())}
        rows.append((node.node, ", ".join(f"{name} {value}" for name, value in known.items())))
    tolerance = facts.tolerance
    rows.append(("tolerance", f"throughput {tolerance.throughput:.0%}, latency {tolerance.latency:.0%}"))
    return rows


def format_spread(spread: Spread | None, digits: int = 1) -> str:
    """Median (min - max)."""
    if spread is None:
        return _NONE
    if spread.min == spread.max:
        return f"{spread.median:,.{digits}f}"
    return f"{spread.median:,.{digits}f} ({spread.min:,.{digits}f} - {spread.max:,.{digits}f})"


def format_percentiles(found: Percentiles | None) -> str:
    """Milliseconds."""
    if found is None:
        return _NONE
    return " / ".join(f"{value * 1e3:,.1f}" for value in (found.p50, found.p90, found.p99))


def _plain(value: float | None) -> str:
    return _NONE if value is None else f"{value:,.0f}"


def _escape_markdown(text: object) -> str:
    """No cell of a stranger's result ends a row or begins HTML."""
    flat = " ".join(str(text).split())
    for char, replacement in (
        ("&", "&amp;"),
        ("<", "&lt;"),
        (">", "&gt;"),
        ("|", "\\|"),
        ("[", "\\["),
        ("`", "'"),
    ):
        flat = flat.replace(char, replacement)
    return flat
