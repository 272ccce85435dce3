"""python -m benchmarks.gpu_cold_steps DIR [DISK]: cold steps and prompts of timing.json over a disk's rates.

DISK: the folder whose disk.json to take, else DIR. Prints, per phase and batch, the medians in ms a step of
stock and ours, the pages that ours read a step, and ours over max(stock, pages / IOPS) for each depth of 48
and more that disk.json has. For cold prefill the same in seconds a prompt, also over the rate at which the
row store alone read there. Writes nothing.
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


def count_pages(cell: dict[str, Any]) -> float:
    return float(sum(v for k, v in cell["metrics_change"]["ours"].items() if k.startswith(PAGES + "{")))


def main(folder: Path, disk_folder: Path) -> None:
    phases = json.loads((folder / "timing.json").read_text())["phases"]
    disk = json.loads((disk_folder / "disk.json").read_text())
    rates = {str(read["depth"]): read["iops"] for read in disk["threads"] if read["depth"] >= 48}
    for phase in (name for name in phases if name.endswith("-cold")):
        for batch in (key for key in phases[phase] if key.isdigit()):
            cell = phases[phase][batch]
            pages = count_pages(cell) / sum(run["verify_steps"] for run in cell["runs"]["ours"])
            stock, ours = step_ms(cell["runs"]["stock"]), step_ms(cell["runs"]["ours"])
            ratios = {depth: round(ours / max(stock, 1e3 * pages / iops), 2) for depth, iops in rates.items()}
            print(phase, batch, f"stock {stock:.2f} ms, ours {ours:.2f} ms, {pages:.0f} pages a step", ratios)
    rates |= {f"row store {read['depth']}": read["pages_per_s"] for read in disk["row_store"]}
    for phase in (name for name in phases if name.endswith("-prefill")):
        for length in (key for key in phases[phase] if key.isdigit()):
            cell = phases[phase][length]
            pages = count_pages(cell) / len(cell["runs"]["ours"])
            stock, ours = (
                statistics.median(run["seconds"] for run in cell["runs"][side]) for side in ("stock", "ours")
            )
            ratios = {name: round(ours / max(stock, pages / rate), 2) for name, rate in rates.items()}
            print(
                phase, length, f"stock {stock:.3f} s, ours {ours:.3f} s, {pages:.0f} pages a prompt", ratios
            )


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[-1]))
