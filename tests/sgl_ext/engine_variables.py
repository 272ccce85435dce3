"""The environment of a CPU engine in a test, on as many of this machine's cores as it has ranks."""

from __future__ import annotations

import os
from pathlib import Path

PROJECT = Path(__file__).parents[2]
# glibc keeps what is freed. Otherwise every large tensor of every step is mapped and faulted in anew, which
# costs as much as its sums. Read when a process starts, so an engine's fork has its origin's.
KEEP_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(4 << 30)}


def cpu_engine_variables(num_ranks: int, reports: Path) -> dict[str, str]:
    """The variables of the shell that runs pytest, without those that steer an engine."""
    own = ("SPARKCTL_", "SGLANG_")
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(own)},
        "SGLANG_USE_CPU_ENGINE": "1",
        # One import of SGLang an engine instead of one a process: half of what a small engine costs here.
        "SPARKCTL_FORK_CHILDREN": "1",
        **KEEP_FREED_MEMORY,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "SGLANG_CPU_OMP_THREADS_BIND": "|".join(
            str(rank % (os.cpu_count() or 1)) for rank in range(num_ranks)
        ),
        "SPARKCTL_REPORT_DIR": str(reports),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")])),
    }
