"""Packing against what the same disk can do: fio reads and writes the same bytes at the same time.

A round is fio (sequential read of the source beside a sequential write of as many bytes as the packed files
have, io_uring, O_DIRECT, 1 MiB requests) and then packing, or the other way round in every second round. The
figure is fio's seconds over packing's, so 1.0 is the disk's own limit; the median over the rounds counts.

    python benchmarks/engram_pack.py --directory DISK --rows 8000000 --out results/engram/pack-HOST.json
"""

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import time
from pathlib import Path

import numpy as np

from engram.checkpoint import Checkpoint, open_checkpoint
from engram.model_config import EngramConfig
from engram.pack_table import NoProgress, PackRequest, pack_tables
from engram.primes import draw_column_primes

REVISION = "c" * 40
WEIGHT_BYTES, SCALE_BYTES = 256, 8


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", type=Path, required=True, help="scratch folder on the disk to measure")
    parser.add_argument("--rows", type=int, default=8_000_000, help="rows of the one table, about")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    source, target = options.directory / "source", options.directory / "target"
    checkpoint = _build_source(source, options.rows)
    shard = checkpoint.tables[0].weight.path
    rounds = []
    try:
        for idx in range(options.rounds):
            seconds = {}
            for name in ("fio", "pack") if idx % 2 == 0 else ("pack", "fio"):
                seconds[name] = (
                    _run_fio(shard, target) if name == "fio" else _pack(checkpoint, target, options)
                )
            rounds.append(seconds | {"ratio": seconds["fio"]["seconds"] / seconds["pack"]["seconds"]})
            print(json.dumps(rounds[-1]), flush=True)
    finally:
        shutil.rmtree(target, ignore_errors=True)
        shutil.rmtree(source)
    result = {
        "what": "fio seconds (sequential read beside sequential write) over packing seconds, same bytes",
        "tp": options.tp,
        "workers": options.workers,
        "machine": platform.machine(),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "fio": subprocess.run(
            ["fio", "--version"], check=True, capture_output=True, text=True
        ).stdout.strip(),
        "rows": checkpoint.tables[0].num_rows,
        "rounds": rounds,
        "median_ratio": statistics.median(entry["ratio"] for entry in rounds),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"median ratio {result['median_ratio']:.3f}")


def _build_source(directory: Path, num_rows: int) -> Checkpoint:
    """A checkpoint of one layer with random planes; only what packing reads."""
    primes = draw_column_primes(num_layers=1, num_orders=3, num_heads=8, vocab_size=num_rows // 24)[0]
    rows = sum(primes)
    config = EngramConfig(
        engram_layer_ids=(1,),
        engram_num_embeddings=(rows,),
        engram_max_ngram_size=4,
        engram_vocab_size=num_rows // 24,
        engram_n_heads=8,
        engram_head_dim=WEIGHT_BYTES,
        engram_pad_token_id=2,
        engram_compressed_vocab_size=99_092,
    )
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(config.model_dump_json())
    entries, offset = {}, 0
    for name, dtype, row_bytes in (("scale", "F8_E8M0", SCALE_BYTES), ("weight", "F8_E4M3", WEIGHT_BYTES)):
        end = offset + rows * row_bytes
        entries[f"layers.1.engram.embed.{name}"] = {
            "dtype": dtype,
            "shape": [rows, row_bytes],
            "data_offsets": [offset, end],
        }
        offset = end
    header = json.dumps(entries).encode()
    block = np.random.default_rng(0).integers(0, 256, 64 << 20, dtype=np.uint8).tobytes()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for start in range(0, offset, len(block)):
            file.write(block[: offset - start])
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return open_checkpoint(directory, revision=REVISION)


def _pack(checkpoint: Checkpoint, target: Path, options: argparse.Namespace) -> dict[str, object]:
    shutil.rmtree(target, ignore_errors=True)
    request = PackRequest(
        checkpoint=checkpoint,
        directory=target,
        source_repo="benchmark",
        tp=options.tp,
        ranks=tuple(range(options.tp)),
        layer_ids=(1,),
        workers=options.workers,
    )
    usage, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    report = pack_tables(request, NoProgress())
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    shutil.rmtree(target)
    return {
        "seconds": seconds,
        "written_bytes": report.packed_bytes,
        "is_direct": report.is_direct,
        "cpu_s": after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime,
    }


def _run_fio(shard: Path, target: Path) -> dict[str, object]:
    """Reader and writer start together; the slower one's end is the limit."""
    target.mkdir(exist_ok=True)
    rows = shard.stat().st_size // (WEIGHT_BYTES + SCALE_BYTES)
    written = -(-rows // 15) * 4096 // (1 << 20) * (1 << 20)
    common = [
        "--ioengine=io_uring",
        "--direct=1",
        "--bs=1M",
        "--iodepth=16",
        "--end_fsync=1",
        "--fallocate=posix",
    ]
    command = [
        "fio", "--output-format=json", *common,
        "--name=read", "--rw=read", f"--filename={shard}", f"--size={shard.stat().st_size // (1 << 20)}M",
        "--name=write", "--rw=write", f"--filename={target / 'fio.bin'}", f"--size={written}",
    ]  # fmt: skip
    start = time.perf_counter()
    done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    wall = time.perf_counter() - start
    (target / "fio.bin").unlink()
    # fio's own clock leaves out its start; the writer's runtime includes the final fsync.
    jobs = {job["jobname"]: job for job in done["jobs"]}
    read_s, write_s = jobs["read"]["read"]["runtime"] / 1e3, jobs["write"]["job_runtime"] / 1e3
    return {"seconds": max(read_s, write_s), "read_s": read_s, "write_s": write_s, "wall_s": wall}


if __name__ == "__main__":
    main()
