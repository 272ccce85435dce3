"""Write results/fit-predictions and the tables of docs/fit.md: python -m tests.launcher.fit_predictions."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from tests.launcher.fit_figures import Figure, figures, taken_over
from tests.launcher.fit_verdicts import verdicts

REPOSITORY = Path(__file__).parents[2]
FILE = REPOSITORY / "results" / "fit-predictions" / "published.json"
DOCUMENT = REPOSITORY / "docs" / "fit.md"
MOST_DEVIATION = 0.03


def as_document() -> dict[str, object]:
    return {
        "what": "published figures of DeepSeek-V4.1-Flash on DGX Sparks against launcher/fit; nothing was "
        "run",
        "most_deviation_of_figures": MOST_DEVIATION,
        "figures": [_with_deviation(figure) for figure in figures()],
        "taken_over": [_with_deviation(figure) for figure in taken_over()],
        "verdicts": [asdict(verdict) for verdict in verdicts()],
    }


def _with_deviation(figure: Figure) -> dict[str, object]:
    return asdict(figure) | {
        "published": round(figure.published, 6),
        "predicted": round(figure.predicted, 6),
        "deviation": round(figure.deviation, 6),
    }


def as_tables() -> str:
    """The tables of docs/fit.md, made of the same rows as the file."""
    lines = ["| figure | published | predicted | deviation | from | source |", "|---|---|---|---|---|---|"]
    lines += [_row(figure) for figure in figures()]
    lines += [
        "",
        "Taken over, so no test of anything:",
        "",
        *lines[:2],
        *[_row(figure) for figure in taken_over()],
    ]
    lines += ["", "| case | what happened | `fit` | source |", "|---|---|---|---|"]
    for verdict in verdicts():
        said = verdict.refused_by or "not refused"
        said = f"refuses: {said}" if verdict.refused_by and ":" not in said else said
        lines.append(f"| {verdict.what} | {verdict.happened} | {said} | {verdict.source} |")
    return "\n".join(lines)


def _row(figure: Figure) -> str:
    return (
        f"| {figure.what} | {_number(figure.published)} {figure.unit} | {_number(figure.predicted)} "
        f"{figure.unit} | "
        f"{figure.deviation:+.2%} | {figure.basis} | {figure.source} |"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.2f}" if abs(value) >= 1 else f"{value:.3f}"


BEGIN, END = "<!-- predictions: python -m tests.launcher.fit_predictions -->", "<!-- end of predictions -->"


def main() -> None:
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(json.dumps(as_document(), indent=1) + "\n")
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{as_tables()}\n{END}{after}")


if __name__ == "__main__":
    main()
