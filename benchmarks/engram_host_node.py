"""What a step's host nodes cost while all rows are in memory: lookups, copies and threads, without a GPU.

    python benchmarks/engram_host_node.py --tree before=OTHER --tree after=. --work W --out FILE

OTHER and . are checkouts with their extensions built (`python setup.py build_ext --inplace`). Every tree runs
in processes of its own, in turn, on one table. A step has two Engram layers and the rows of 24 columns a
token; 6, 48 and 96 tokens are verifies of 1, 8 and 16 requests. Steps lie a pause apart, as a model's do, so
that threads sleep and the processor's caches hold other rows.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

COLUMN_ROWS = 100_000  # 2.4 million rows, 650 MB: more than a processor caches
LAYERS = 2
COLUMNS = 24
TOKENS = (1, 6, 16, 48, 96)
CACHED_ROWS = 400_000
PAUSE_S = 0.002


def measure_tree(work: Path, steps: int, threads: int) -> list[dict[str, Any]]:
    """In a process whose `engram` and `sgl_ext` are the tree's."""
    from engram.bench.synthetic_table import ensure_table
    from engram.row_store import open_row_store

    table = ensure_table(work, COLUMN_ROWS)
    found = []
    for backend, cache_bytes in (("ram", 0), ("threads", CACHED_ROWS * 400)):
        with open_row_store(
            [table], allow_buffered=True, self_test_blocks=0, backend=backend, cache_bytes=cache_bytes
        ) as store:
            for tokens in TOKENS:
                found.append({"backend": backend, **measure_steps(store, tokens, steps, threads)})
    return found


def measure_steps(store: Any, tokens: int, steps: int, threads: int) -> dict[str, Any]:
    import numpy as np
    import sgl_ext.engram._native as native
    from engram._core import READ_NOW_ADDRESS

    from sgl_ext.engram.payload import PayloadLayout

    layer_id, shape = store.layer_ids[0], store.shape
    num_ids = tokens * COLUMNS
    layout = PayloadLayout(num_ids=num_ids, dim=shape.weight_bytes)
    draw = np.random.default_rng(tokens)
    pool = np.random.default_rng(0).choice(store.headers[0].total_rows, CACHED_ROWS, replace=False)
    store.read_rows(layer_id, pool)  # from here on in the cache, where there is one
    misses = store.counters().missed_rows
    ids = [np.zeros(num_ids, dtype=np.int64) for _ in range(LAYERS)]
    payloads = [np.zeros(layout.total_bytes, dtype=np.uint8) for _ in range(LAYERS)]
    readers = native.ReaderPool(
        read_now_address=READ_NOW_ADDRESS,
        weight_bytes=shape.weight_bytes,
        scale_bytes=shape.scale_bytes,
        num_threads=threads,
    )
    layers = []
    for own, payload in zip(ids, payloads, strict=True):
        base = payload.ctypes.data
        scale, status = base + layout.scale_offset, base + layout.status_offset
        layers.append((store.reader_address(layer_id), own.ctypes.data, num_ids, base, scale, status))
    step = native.Step(readers, layers, part_ids=32)
    first, both, cpu = [], [], []
    for _ in range(steps):
        for own in ids:
            own[:] = pool[draw.integers(0, CACHED_ROWS, num_ids)]
        time.sleep(PAUSE_S)
        cpu_begin, begin = time.process_time_ns(), time.perf_counter_ns()
        step.run_node(0)
        middle = time.perf_counter_ns()
        step.run_node(1)
        end = time.perf_counter_ns()
        first.append((middle - begin) / 1e3)
        both.append((end - begin) / 1e3)
        cpu.append((time.process_time_ns() - cpu_begin) / 1e3)
    weight, _ = store.read_rows(layer_id, ids[1])
    assert (payloads[1][: weight.size] == weight.reshape(-1)).all(), "a step's rows are not the store's"
    missed = store.counters().missed_rows - misses
    assert missed == 0, f"all rows must be in memory, got {missed} read from the file"
    settled = slice(steps // 10, None)  # the first steps warm up
    return {
        "tokens": tokens,
        "rows_per_layer": num_ids,
        "first_layer_us": spread(first[settled]),
        "both_layers_us": spread(both[settled]),
        "cpu_us": spread(cpu[settled]),
    }


def spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "p50": round(statistics.median(ordered), 2),
        "p95": round(ordered[int(0.95 * len(ordered))], 2),
        "mean": round(statistics.fmean(ordered), 2),
    }


def run_child(tree: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    command = [sys.executable, __file__, "--child", "--work", str(options.work)]
    command += ["--steps", str(options.steps), "--threads", str(options.threads)]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{tree}: {done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    wanted = str(tree.resolve())
    if not answer["native"].startswith(wanted):
        raise SystemExit(f"the tree's own extension must be measured, got {answer['native']} for {wanted}")
    found: list[dict[str, Any]] = answer["rows"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tree", action="append", default=[], help="NAME=CHECKOUT, at least one")
    parser.add_argument("--work", type=Path, required=True, help="folder of the table")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--threads", type=int, default=4, help="as SPARKCTL_ENGRAM_READ_THREADS")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        import sgl_ext.engram._native as native

        rows = measure_tree(options.work, options.steps, options.threads)
        print(json.dumps({"native": str(Path(native.__file__).resolve()), "rows": rows}))
        return
    trees = dict(item.split("=", 1) for item in options.tree)
    rounds = [
        {name: run_child(Path(tree), options) for name, tree in trees.items()} for _ in range(options.rounds)
    ]
    result = {
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "threads": options.threads,
        "steps": options.steps,
        "pause_s": PAUSE_S,
        "rounds": rounds,
    }
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    for name in trees:
        for place, row in enumerate(rounds[0][name]):
            same = [one[name][place] for one in rounds]
            figures = {
                key: [min(item[key][part] for item in same) for part in ("p50", "p95")]
                for key in ("first_layer_us", "both_layers_us", "cpu_us")
            }
            print(name, row["backend"], row["tokens"], json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
