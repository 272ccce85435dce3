"""What the ranks of the collective probe told, and what that means. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from launcher.doctor.finding import Finding

CHECK = "collective"
SIZES_BYTES = (4, 4096, 65536, 1 << 20, 16 << 20, 256 << 20)
# torch from a cold disk, on a node that is busy with something else.
IMPORT_LIMIT_S = 120.0
# Published for NCCL over one Spark cable: 180 Gb/s and more for a pair, 105 to 111 Gb/s in a triangle. Wedged
# firmware gave 13 Gb/s, a re-plugged port 22 Gb/s, TCP 17 Gb/s: all below 30.
NCCL_REFUSE_GBPS, NCCL_WARN_GBPS = 30.0, 90.0
# Gloo moves data over TCP. On GPUs it only prepares the start, on CPUs the engine's layers go over it: a
# gigabit cable gives 0.9, and below 0.05 (a broken cable at 10 or 100 Mb/s, WiFi) minutes become hours.
GLOO_REFUSE_GBPS, GLOO_WARN_GBPS = 0.05, 0.4
NCCL_SMALL_S, GLOO_SMALL_S = 0.001, 0.02
SMALL_BYTES = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """One rank. `stages`: what it told, in order; `end`: how its process ended;
    `error`: it could not be asked."""

    node: str
    rank: int
    stages: tuple[dict[str, Any], ...] = ()
    end: dict[str, Any] | None = None
    error: str = ""

    @property
    def stage(self) -> str:
        return str(self.stages[-1]["stage"]) if self.stages else "not started"

    @property
    def progress(self) -> int:
        return len(self.stages)

    @property
    def last_words(self) -> str:
        tail = (self.end or {}).get("tail") or []
        return str(tail[-1]) if tail else self.error or "it said nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveResult:
    backend: str
    limit_s: float
    ranks: tuple[RankResult, ...]
    seconds: float

    def rows(self) -> list[dict[str, float]]:
        """Per size: the slowest rank's median,
        and bus bandwidth as nccl-tests counts it: 2 (n-1)/n bytes a second."""
        sizes: dict[int, list[float]] = {}
        for rank in self.ranks:
            for stage in rank.stages:
                if stage.get("stage") == "size":
                    sizes.setdefault(int(stage["size_bytes"]), []).append(float(stage["median_s"]))
        factor = 2 * (len(self.ranks) - 1) / len(self.ranks)
        return [
            {"size_bytes": size, "seconds": max(times), "busbw_gbps": factor * size * 8 / max(times) / 1e9}
            for size, times in sorted(sizes.items())
            if len(times) == len(self.ranks)
        ]


def collective_findings(result: CollectiveResult) -> Iterable[Finding]:
    """One finding for a failure, else one for each figure that is out of bounds, else one that is ok."""
    failed = [rank for rank in result.ranks if rank.stage != "done" or rank.error]
    if failed:
        yield _failure(result)
        return
    wrong = [rank.node for rank in result.ranks if any(stage.get("wrong") for stage in rank.stages)]
    if wrong:
        yield _finding(
            "refuse",
            ", ".join(wrong),
            "an all-reduce gave a wrong sum",
            "every answer would be garbage",
            "reseat the cables; look at check xid and aer",
        )
        return
    found = [*_transport(result), *_figures(result)]
    yield from found
    if not found:
        last = result.rows()[-1]
        yield _finding(
            "ok",
            "all",
            f"{result.backend} all-reduce from 4 B to {int(last['size_bytes']) >> 20} MiB works, "
            f"{last['busbw_gbps']:.1f} Gb/s bus bandwidth",
            "",
            "",
        )


def _failure(result: CollectiveResult) -> Finding:
    """Names the rank that got least far and ended by itself: the others only waited for it."""
    causes = [rank for rank in result.ranks if _ended_by_itself(rank) and not _is_secondary(rank)]
    first = min(causes or result.ranks, key=lambda rank: rank.progress)
    reached = ", ".join(f"{rank.node} {_where(rank)}" for rank in result.ranks)
    timed_out = all(_timed_out(rank) for rank in result.ranks)
    what = f"nothing moved for {result.limit_s:.0f} s" if timed_out else first.last_words
    fix = "sparkctl doctor: its checks reach, cabling, gid and nccl-conf say more"
    if first.stage == "not started":
        fix = "the engine's Python cannot import torch there: sparkctl install"
        if _timed_out(first):
            what = f"torch was not loaded in {IMPORT_LIMIT_S:.0f} s"
            fix = (
                "the node is busy or its disk is slow, look at: top, iostat -x 1; then sparkctl doctor again"
            )
    return _finding(
        "refuse",
        first.node,
        f"the {result.backend} all-reduce must end, it did not: {what} ({reached})",
        "the engine would stand still at the same place, after minutes of loading",
        fix,
    )


def _ended_by_itself(rank: RankResult) -> bool:
    return bool(rank.error or (rank.end and not _timed_out(rank) and rank.end.get("status")))


def _timed_out(rank: RankResult) -> bool:
    return bool((rank.end or {}).get("timed_out"))


def _is_secondary(rank: RankResult) -> bool:
    """A rank that lost its peer, or waited for it in vain, is not the cause."""
    words = rank.last_words
    return any(
        text in words for text in ("Connection reset by peer", "Connection closed by peer", "clients joined")
    )


def _where(rank: RankResult) -> str:
    last = rank.stages[-1] if rank.stages else {}
    return f"did {last['size_bytes']} B" if rank.stage == "size" else rank.stage


def _transport(result: CollectiveResult) -> Iterable[Finding]:
    if result.backend != "nccl":
        return
    for rank in result.ranks:
        lines = (rank.end or {}).get("transport") or []
        if any(
            "Using network Socket" in line or "No device found" in line or "via NET/Socket" in line
            for line in lines
        ):
            yield _finding(
                "refuse",
                rank.node,
                f"NCCL takes TCP instead of RDMA: {lines[0]}",
                "a tenth of the bandwidth, without any error",
                "see the checks hca, verbs-devices and gid",
            )


def _figures(result: CollectiveResult) -> Iterable[Finding]:
    rows = result.rows()
    is_nccl = result.backend == "nccl"
    small = next((row for row in rows if row["size_bytes"] <= SMALL_BYTES), None)
    limit_s = NCCL_SMALL_S if is_nccl else GLOO_SMALL_S
    if small and small["seconds"] > limit_s:
        yield _finding(
            "warn",
            "all",
            f"an all-reduce of {int(small['size_bytes'])} B must take under {limit_s * 1e3:g} ms, "
            f"got {small['seconds'] * 1e3:.1f} ms",
            "every decode step does dozens of them",
            "look for a busy node or WiFi: checks reach and route",
        )
    speed = rows[-1]["busbw_gbps"]
    refuse_below, warn_below = (
        (NCCL_REFUSE_GBPS, NCCL_WARN_GBPS) if is_nccl else (GLOO_REFUSE_GBPS, GLOO_WARN_GBPS)
    )
    if speed < warn_below:
        level = "refuse" if speed < refuse_below else "warn"
        yield _finding(
            level,
            "all",
            f"bus bandwidth at {int(rows[-1]['size_bytes']) >> 20} MiB must be over {warn_below:g} Gb/s, "
            f"got {speed:.2f}",
            "prefill waits for the network; wedged firmware and re-plugged cables look like that",
            "sparkctl doctor: its checks link-speed, pcie-link, cable-log and route; reboot the nodes, else "
            "power them off and unplug them for a minute",
        )


def _finding(level: Any, node: str, evidence: str, consequence: str, fix: str) -> Finding:
    return Finding(level=level, check=CHECK, node=node, evidence=evidence, consequence=consequence, fix=fix)


def from_lines(
    nodes: Mapping[str, int],
    lines: Mapping[str, list[dict[str, Any]]],
    errors: Mapping[str, str],
    *,
    backend: str,
    limit_s: float,
    seconds: float,
) -> CollectiveResult:
    """`nodes`: name -> rank; `lines`: what each node streamed."""
    ranks = []
    for node, rank in nodes.items():
        said = lines.get(node, [])
        stages = tuple(
            line["probe"] for line in said if isinstance(line.get("probe"), dict) and "stage" in line["probe"]
        )
        end = next((line["end"] for line in said if isinstance(line.get("end"), dict)), None)
        ranks.append(RankResult(node=node, rank=rank, stages=stages, end=end, error=errors.get(node, "")))
    return CollectiveResult(backend=backend, limit_s=limit_s, ranks=tuple(ranks), seconds=seconds)
