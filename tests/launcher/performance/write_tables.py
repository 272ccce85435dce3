"""Write results/performance-model and the tables of its page.

python -m tests.launcher.performance.write_tables
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from launcher.performance import tables

REPOSITORY = Path(__file__).parents[3]
DOCUMENT = REPOSITORY / "docs" / "performance-model.md"
RESULTS = REPOSITORY / "results" / "performance-model"
# Name of a part of the page -> what stands in it.
PARTS: dict[str, Callable[[], str]] = {
    "summary": lambda: "\n".join(f"- {line}" for line in tables.summary_lines()),
    "published": lambda: tables.as_markdown(tables.published_table()),
    "not predicted": lambda: tables.as_markdown(tables.not_predicted_table()),
    "changes": lambda: tables.as_markdown(tables.changes_table()),
    "parameters": lambda: tables.as_markdown(tables.parameters_table()),
}


def documents() -> dict[str, object]:
    return {"published.json": tables.published_document(), "changes.json": tables.changes_document()}


def part_of(text: str, name: str) -> str:
    return text.partition(_begin(name))[2].partition(_end(name))[0].strip()


def _begin(name: str) -> str:
    return f"<!-- {name}: python -m tests.launcher.performance.write_tables -->"


def _end(name: str) -> str:
    return f"<!-- end of {name} -->"


def main() -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name, document in documents().items():
        (RESULTS / name).write_text(json.dumps(document, indent=1) + "\n")
    text = DOCUMENT.read_text()
    for name, write in PARTS.items():
        before, _, rest = text.partition(_begin(name))
        after = rest.partition(_end(name))[2]
        text = f"{before}{_begin(name)}\n{write()}\n{_end(name)}{after}"
    DOCUMENT.write_text(text)


if __name__ == "__main__":
    main()
