"""Memory and who holds it, limits of processes, the desktop, the clock."""

from __future__ import annotations

from collections.abc import Iterable

from launcher.doctor.case import Case, gib
from launcher.doctor.check import Check, check, on_gpus, on_rdma_without_container
from launcher.doctor.finding import Problem, refuse, warn
from launcher.doctor.host_facts import HostFacts

# An idle Spark has 110 to 118 of 121.7 GiB available.
IDLE_FRACTION = 0.85
PAGE_CACHE_BYTES = 10 << 30
SWAP_USED_BYTES = 1 << 30
# The queue pairs and staging buffers of one NCCL process; docker's default of 8 MiB fails, DGX OS gives
# nearly all.
MEMLOCK_BYTES = 1 << 30
OPEN_FILES, OPEN_FILES_HARD = 1024, 4096
CLOCK_SKEW_S = 2.0


@check(
    "memory",
    part="host",
    covers="F44 F45 F49 F52 S-stale-engine",
    means="the memory that the model needs is available",
    why="the engine is killed while it loads, or gets a smaller KV pool than yesterday",
    fix="end what holds it (see the list), or wait until a stopped engine's memory is back",
)
def memory(case: Case) -> Iterable[Problem]:
    num_ranks = sum(len(node.ranks) for node in case.plan.nodes)
    for node, host in case.hosts():
        available, total = host.memory.MemAvailable, host.memory.MemTotal
        if available is None or total is None:
            continue
        store = case.reports[node.name].storage
        weights = store.model.weight_bytes if store and store.model else 0
        needed = weights * len(node.ranks) // max(1, num_ranks)
        if needed > available:
            yield refuse(
                node.name,
                f"{gib(available)} of memory are available, this node's share of the weights "
                f"alone is {gib(needed)}; "
                f"largest: {_holders(host)}",
            )
        elif case.has_gpu and available < total * IDLE_FRACTION:
            yield warn(
                node.name, f"only {gib(available)} of {gib(total)} are available; largest: {_holders(host)}"
            )


def _holders(host: HostFacts) -> str:
    return (
        ", ".join(f"{item.name} (pid {item.pid}) {gib(item.rss_bytes)}" for item in host.largest[:3])
        or "nobody"
    )


@check(
    "page-cache",
    part="host",
    covers="F44 S-page-cache",
    means="the page cache is small enough for CUDA to see the free memory",
    why="CUDA counts cached pages as used: the KV pool comes out smaller and differs from boot to boot",
    fix="sparkctl weights drop-cache, or: sync; echo 1 | sudo tee /proc/sys/vm/drop_caches",
    applies=on_gpus,
)
def page_cache(case: Case) -> Iterable[Problem]:
    for node, host in case.hosts():
        free, available, cached = host.memory.MemFree, host.memory.MemAvailable, host.memory.Cached
        if (
            free is not None
            and available is not None
            and cached
            and min(cached, available - free) > PAGE_CACHE_BYTES
        ):
            yield warn(node.name, f"{gib(cached)} are page cache, {gib(free)} are free (/proc/meminfo)")


@check(
    "swap",
    part="host",
    covers="F48 S-swap",
    means="nothing was swapped out",
    why="something took more than the node has; decode steps that touch swapped pages stall",
    fix="end what holds the memory; sudo swapoff -a && sudo swapon -a empties the swap",
    applies=on_gpus,
)
def swap(case: Case) -> Iterable[Problem]:
    for node, host in case.hosts():
        total, free = host.memory.SwapTotal, host.memory.SwapFree
        if total is not None and free is not None and total - free > SWAP_USED_BYTES:
            yield warn(
                node.name,
                f"{gib(total - free)} of {gib(total)} swap are in use, vm.swappiness {host.swappiness} "
                f"(largest: {_holders(host)})",
            )


@check(
    "desktop",
    part="host",
    covers="F53",
    means="no desktop session takes memory",
    why="a desktop takes 1 to 15 GB of the memory that GPU and CPU share",
    fix="sudo systemctl isolate multi-user.target (for good: sudo systemctl set-default multi-user.target)",
    applies=on_gpus,
)
def desktop(case: Case) -> Iterable[Problem]:
    for node, host in case.hosts():
        if host.desktop:
            held = sum(item.rss_bytes for item in host.desktop)
            names = ", ".join(sorted({item.name for item in host.desktop}))
            yield warn(node.name, f"{names} run and hold {gib(held)}")


@check(
    "other-engine",
    part="host",
    covers="F13 F14 S-stale-engine",
    means="no other inference engine runs on the node",
    why="it holds the memory and perhaps the ports; a new worker may even join its old head",
    fix="sparkctl status; sparkctl down, or end the processes that are named",
    applies=on_gpus,
)
def other_engine(case: Case) -> Iterable[Problem]:
    for node, host in case.hosts():
        if host.engines:
            listed = ", ".join(f"{item.title[:60]} (pid {item.pid})" for item in host.engines[:3])
            yield refuse(node.name, f"{len(host.engines)} engine process(es) run: {listed}")


@check(
    "memlock",
    part="host",
    covers="S-memlock",
    means="processes may lock the memory that RDMA registers",
    why="ibv_reg_mr fails with 'Cannot allocate memory' at NCCL's start",
    fix="in /etc/security/limits.d/rdma.conf: '* - memlock unlimited'; then log in again",
    applies=on_rdma_without_container,
)
def memlock(case: Case) -> Iterable[Problem]:
    for node, host in case.hosts():
        limit = _limit(host.limits.get("memlock_bytes"))
        if limit is not None and limit < MEMLOCK_BYTES:
            yield refuse(
                node.name,
                f"max locked memory must be at least 1 GiB or unlimited, got {limit} bytes (ulimit -l)",
            )


@check(
    "open-files",
    part="host",
    means="processes may open as many files and sockets as an engine needs",
    why="the engine or the row store ends with 'Too many open files'",
    fix="in /etc/security/limits.d/files.conf: '* - nofile 1048576'; then log in again",
)
def open_files(case: Case) -> Iterable[Problem]:
    for node, host in case.hosts():
        soft, hard = _limit(host.limits.get("open_files")), _limit(host.limits.get("open_files_hard"))
        if (soft is not None and soft < OPEN_FILES) or (hard is not None and hard < OPEN_FILES_HARD):
            yield warn(
                node.name,
                f"max open files must be at least {OPEN_FILES} (hard {OPEN_FILES_HARD}), "
                f"got {soft} (hard {hard})",
            )


def _limit(text: str | None) -> int | None:
    """None for unlimited and for unknown."""
    return int(text) if text and text.isdigit() else None


@check(
    "clock",
    part="host",
    covers="S-clock-skew",
    means="the nodes' clocks agree with this machine's",
    why="merged logs are out of order and the wrong rank is blamed; certificates and tokens may be refused",
    fix="sudo timedatectl set-ntp true; timedatectl",
)
def clock(case: Case) -> Iterable[Problem]:
    for node, host in case.hosts():
        report = case.reports[node.name]
        if (
            report.clock_skew_s is not None
            and abs(report.clock_skew_s) - (report.clock_error_s or 0) > CLOCK_SKEW_S
        ):
            yield warn(
                node.name,
                f"its clock must be within {CLOCK_SKEW_S:.0f} s of ours, it is {report.clock_skew_s:+.1f} s "
                f"(give or take {report.clock_error_s:.2f} s)",
            )
        elif host.ntp_synchronized is False and case.has_gpu:
            yield warn(
                node.name,
                "timedatectl says NTPSynchronized=no",
                why="the clocks of the nodes will drift apart",
            )


CHECKS: tuple[Check, ...] = (
    memory,
    page_cache,
    swap,
    desktop,
    other_engine,
    memlock,
    open_files,
    clock,
)
