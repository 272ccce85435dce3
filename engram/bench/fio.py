"""fio as the judge of what the disk can do: io_uring, O_DIRECT, random 4 KiB reads."""

import json
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from engram.errors import EngramError

FIO_OPTIONS = (
    "--ioengine=io_uring",
    "--direct=1",
    "--rw=randread",
    "--bs=4k",
    "--fixedbufs",
    "--registerfiles=1",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FioResult:
    iodepth: int
    iops: float
    p50_s: float
    p99_s: float
    cpu_s_per_read: float
    """User and system time of the fio process over its reads."""

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def fio_version() -> str:
    return _run(["fio", "--version"]).strip()


def run_fio(path: Path, *, iodepth: int, runtime_s: float) -> FioResult:
    report = json.loads(
        _run(
            [
                "fio",
                "--name=read",
                f"--filename={path}",
                f"--iodepth={iodepth}",
                f"--runtime={runtime_s}",
                "--time_based",
                # New offsets in every round, drawn without keeping a map of those read.
                "--randrepeat=0",
                "--norandommap",
                "--readonly",
                "--output-format=json",
                *FIO_OPTIONS,
            ]
        )
    )
    job = report["jobs"][0]
    read = job["read"]
    latency = read["clat_ns"]["percentile"]
    return FioResult(
        iodepth=iodepth,
        iops=read["iops"],
        p50_s=latency["50.000000"] / 1e9,
        p99_s=latency["99.000000"] / 1e9,
        cpu_s_per_read=(job["usr_cpu"] + job["sys_cpu"]) / 100 / read["iops"],
    )


def _run(command: list[str]) -> str:
    if shutil.which("fio") is None:
        raise EngramError("fio must be installed, got no such program (PATH).", hint="apt-get install fio")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise EngramError(f"fio must succeed, got: {done.stderr.strip()[-300:]} ({' '.join(command)}).")
    return done.stdout
