"""Who else uses the processors: kept with every measurement, since a busy machine makes it worthless."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

WINDOW_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLoad:
    busy_cores: float
    """Over the second before the measurement, of all processes."""
    cores: int
    load_average: float
    """Of the last minute, so earlier measurements count."""


def read_load() -> MachineLoad:
    before, _ = _ticks()
    time.sleep(WINDOW_S)
    after, cores = _ticks()
    busy = after[0] - before[0]
    return MachineLoad(
        busy_cores=round(cores * busy / max(1, busy + after[1] - before[1]), 2),
        cores=cores,
        load_average=os.getloadavg()[0],
    )


def _ticks() -> tuple[tuple[int, int], int]:
    """(Busy, idle) ticks of all cores together, and how many cores there are."""
    lines = Path("/proc/stat").read_text().splitlines()
    user, nice, system, idle, iowait, irq, softirq, steal = map(int, lines[0].split()[1:9])
    cores = sum(line.startswith("cpu") for line in lines) - 1
    return (user + nice + system + irq + softirq + steal, idle + iowait), cores
