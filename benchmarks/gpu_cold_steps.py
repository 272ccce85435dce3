"""python -m benchmarks.gpu_cold_steps DIR: cold decode steps of timing.json over the rates of disk.json.

Prints, per phase and batch, the medians in ms a step of stock and ours, the pages that ours read a step, and
ours over max(stock, pages / IOPS) for each depth of 48 and more that disk.json has. Writes nothing.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

PAGES = "sparkctl_engram_pages_total"


def step_ms(runs: list[dict[str, Any]]) -> float:
    """A run whose prefill waited elsewhere has a negative time (the prefill's is subtracted): left out."""
    steps = (1e3 * run["seconds"] / run["verify_steps"] for run in runs if run["seconds"] > 0)
    return float(statistics.median(steps))


def main(folder: Path) -> None:
    phases = json.loads((folder / "timing.json").read_text())["phases"]
    disk = json.loads((folder / "disk.json").read_text())["threads"]
    rates = {read["depth"]: read["iops"] for read in disk if read["depth"] >= 48}
    for phase in (name for name in phases if name.endswith("-cold")):
        for batch in (key for key in phases[phase] if key.isdigit()):
            cell = phases[phase][batch]
            pages = sum(v for k, v in cell["metrics_change"]["ours"].items() if k.startswith(PAGES + "{"))
            pages /= sum(run["verify_steps"] for run in cell["runs"]["ours"])
            stock, ours = step_ms(cell["runs"]["stock"]), step_ms(cell["runs"]["ours"])
            ratios = {depth: round(ours / max(stock, 1e3 * pages / iops), 2) for depth, iops in rates.items()}
            print(phase, batch, f"stock {stock:.2f} ms, ours {ours:.2f} ms, {pages:.0f} pages a step", ratios)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
