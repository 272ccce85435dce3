"""Runs the measurements by name and keeps every sample, one JSON file each."""

import json
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from engram.bench.bench_setup import BenchSetup
from engram.bench.fio import FIO_OPTIONS, fio_version
from engram.bench.machine_load import MachineLoad, read_load
from engram.bench.measure_cache import measure_steady_cache
from engram.bench.measure_cold import DEPTHS, measure_cold_rows
from engram.bench.measure_cost import measure_hit_cpu, measure_memory, measure_miss_cpu
from engram.bench.measure_decode import measure_decode_beside_lookahead, measure_decode_p50
from engram.bench.measure_policy import SWEEPS_CHUNKS, measure_policy
from engram.bench.measure_text import measure_cold_text
from engram.bench.rounds import Figure
from engram.bench.synthetic_table import COLUMN_ROWS, ensure_table
from engram.bench.text_trace import Kind, load_traces
from engram.direct_file import naming_disk_errors
from engram.errors import EngramError
from engram.store_options import MAX_QUEUE_DEPTH, StoreOptions
from engram.table_format import HEADER_BYTES, parse_header
from engram.write_file import write_atomically

Measurement = Callable[[BenchSetup], Sequence[Figure]]


def _at_depth(depth: int) -> Measurement:
    return lambda setup: measure_cold_rows(setup, depth)


def _policies(setup: BenchSetup, kind: Kind) -> list[Figure]:
    return [measure_policy(setup, kind, sweep_chunks=chunks) for chunks in (*SWEEPS_CHUNKS, 0)]


MEASUREMENTS: dict[str, Measurement] = {
    **{f"cold-{depth}": _at_depth(depth) for depth in DEPTHS},
    "prose": lambda setup: measure_cold_text(setup, "prose"),
    "code": lambda setup: measure_cold_text(setup, "code"),
    "cache-prose": lambda setup: measure_steady_cache(setup, "prose"),
    "cache-code": lambda setup: measure_steady_cache(setup, "code"),
    "cache-prose-mixed": lambda setup: measure_steady_cache(setup, "prose", mixed=True),
    "cache-code-mixed": lambda setup: measure_steady_cache(setup, "code", mixed=True),
    "policy-prose": lambda setup: _policies(setup, "prose"),
    "policy-code": lambda setup: _policies(setup, "code"),
    "decode": lambda setup: [measure_decode_p50(setup)],
    "decode-lookahead": lambda setup: [measure_decode_beside_lookahead(setup)],
    "cpu-hit": lambda setup: [measure_hit_cpu(setup, "prose")],
    "cpu-miss": measure_miss_cpu,
    "memory": lambda setup: [measure_memory(setup)],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    directory: Path
    """Where the table (5.6 GB) and the traces are kept; on the disk to be measured."""
    results: Path
    text_roots: tuple[Path, ...]
    only: tuple[str, ...] = ()
    """Names of MEASUREMENTS; empty for all."""
    queue_depth: int = StoreOptions.model_fields["queue_depth"].default
    column_rows: int = COLUMN_ROWS


def default_text_roots() -> tuple[Path, ...]:
    """System documentation and headers, and this Python's library with its packages."""
    candidates = (Path("/usr/share"), Path("/usr/include"), Path(sys.base_prefix), Path(sys.prefix))
    return tuple(dict.fromkeys(root for root in candidates if root.is_dir()))


def run_bench(request: BenchRequest, report: Callable[[str], None]) -> list[Figure]:
    """Measures, writes <results>/<name>.json for each, returns all figures; `report` gets one line each."""
    names = request.only or tuple(MEASUREMENTS)
    for name in names:
        if name not in MEASUREMENTS:
            raise EngramError(
                f"--only must be of {', '.join(MEASUREMENTS)}, got {name}.", hint="leave it out to run all"
            )
    if not 1 <= request.queue_depth <= MAX_QUEUE_DEPTH:
        raise EngramError(
            f"--queue-depth must be 1 to {MAX_QUEUE_DEPTH}, got {request.queue_depth}.",
            hint="leave it out: drives reach their rate from 64 on",
        )
    with naming_disk_errors("create the folder", request.results):
        request.results.mkdir(parents=True, exist_ok=True)
    report(f"table and traces in {request.directory}")
    setup = _prepare(request)
    figures: list[Figure] = []
    for name in names:
        load = read_load()
        measured = MEASUREMENTS[name](setup)
        _write(request, name, load, measured)
        for figure in measured:
            report(format_figure(figure))
        figures += measured
    return figures


def format_figure(figure: Figure) -> str:
    sign = "<=" if figure.at_most else ">="
    verdict = "ok" if figure.reached else "BELOW THE BAR"
    line = (
        f"{figure.name}: {figure.value:.3g} {figure.unit}".rstrip()
        + f" (bar {sign} {figure.bar:g}) {verdict}"
    )
    notes = "".join(f"\n    {name} {value:.4g}" for name, value in (figure.notes or {}).items())
    return line + notes


def _prepare(request: BenchRequest) -> BenchSetup:
    table = ensure_table(request.directory, request.column_rows)
    with table.open("rb") as file:
        header = parse_header(file.read(HEADER_BYTES), str(table))
    return BenchSetup(
        table=table,
        header=header,
        traces=load_traces(request.directory / "trace", request.text_roots, request.column_rows),
        queue_depth=request.queue_depth,
        rng=np.random.default_rng(),
    )


def _write(request: BenchRequest, name: str, load: MachineLoad, figures: Sequence[Figure]) -> None:
    document = {
        "measurement": name,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"sparkctl engram bench --only {name} --queue-depth {request.queue_depth}",
        "column_rows": request.column_rows,
        "load_before": asdict(load),
        "versions": {
            "fio": fio_version(),
            "fio_options": " ".join(FIO_OPTIONS),
            "kernel": platform.release(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
        "figures": [{**asdict(figure), "reached": figure.reached} for figure in figures],
    }
    write_atomically(request.results / f"{name}.json", json.dumps(document, indent=1).encode())
