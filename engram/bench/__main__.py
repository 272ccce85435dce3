"""python -m engram.bench DIRECTORY RESULTS [NAME...]: the measurements without sparkctl."""

import sys
from pathlib import Path

from engram.bench.run_bench import BenchRequest, default_text_roots, run_bench

if __name__ == "__main__":
    request = BenchRequest(
        directory=Path(sys.argv[1]),
        results=Path(sys.argv[2]),
        text_roots=default_text_roots(),
        only=tuple(sys.argv[3:]),
    )
    run_bench(request, report=print)
