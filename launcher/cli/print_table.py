"""Tables for people: rich on a terminal, full width in a pipe so that no cell is cut."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

_PIPE_WIDTH = 250


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """One line per row on a terminal that is wide enough; cells fold where it is not."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(_escape(cell) for cell in row))
    is_terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, width=None if is_terminal else _PIPE_WIDTH, highlight=False)
    # rich's own writing ends with status 1 when the reader goes (`recipe list | head`).
    with console.capture() as drawn:
        console.print(table)
    typer.echo(drawn.get(), nl=False)


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Aligned plain lines without titles, easy to grep; the last column is never padded."""
    widths = [max((len(cell) for cell in column), default=0) for column in list(zip(*rows, strict=True))[:-1]]
    for row in rows:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        typer.echo("  ".join([*padded, row[-1]]))


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
