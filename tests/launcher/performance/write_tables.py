"""Write results/performance-model and the tables of the pages that show the model.

python -m tests.launcher.performance.write_tables

After a change of the model or of the published rows, find the parameters first (two minutes):
python -m tests.launcher.performance.find_parameters
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from launcher.performance import tables

REPOSITORY = Path(__file__).parents[3]
MODEL, ENGRAM = (REPOSITORY / "docs" / name for name in ("performance-model.md", "engram-in-sglang.md"))
RESULTS = REPOSITORY / "results" / "performance-model"
# Page and name of a part of it -> what stands there.
PARTS: dict[tuple[Path, str], Callable[[], str]] = {
    (MODEL, "parameters"): lambda: tables.as_markdown(tables.parameters_table()),
    (MODEL, "summary"): lambda: "\n".join(f"- {line}" for line in tables.summary_lines()),
    (MODEL, "missed"): lambda: tables.as_markdown(tables.missed_table()),
    (MODEL, "sharing"): lambda: tables.as_markdown(tables.sharing_table()),
    (MODEL, "changes"): lambda: tables.as_markdown(tables.changes_table()),
    (MODEL, "formats"): lambda: tables.as_markdown(tables.formats_table()),
    (MODEL, "published"): lambda: tables.as_markdown(tables.published_table()),
    (MODEL, "not predicted"): lambda: tables.as_markdown(tables.not_predicted_table()),
    (ENGRAM, "cost"): lambda: tables.as_markdown(tables.engram_table()),
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
    subprocess.run(["sh", "scripts/checksum_results.sh", RESULTS.name], cwd=REPOSITORY, check=True)
    for (page, name), write in PARTS.items():
        text = page.read_text()
        before, begin, rest = text.partition(_begin(name))
        if not begin or _end(name) not in rest:
            raise SystemExit(f"{page} must hold the part {name!r} between its two comments, got none")
        after = rest.partition(_end(name))[2]
        page.write_text(f"{before}{begin}\n{write()}\n{_end(name)}{after}")


if __name__ == "__main__":
    main()
