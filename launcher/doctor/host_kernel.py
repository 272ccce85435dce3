"""Kernel, driver, contiguous memory, and what the kernel's log tells."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from launcher.doctor.case import Case, by_value
from launcher.doctor.check import Check, check, on_gpus
from launcher.doctor.finding import Problem, refuse, warn
from launcher.doctor.known_bad import known_bad

# 55 lines in 3 days were counted on healthy nodes: https://github.com/vllm-project/vllm/issues/56824
NORMAL_NV_MEMORY_LINES = 60


@check(
    "known-bad",
    part="host",
    covers="F19 S-kernel",
    means="kernel and driver are not among those reported to break serving (launcher/known_bad.yaml)",
    why="others lost hours to this version",
    fix="update or go back, then reboot",
    applies=on_gpus,
)
def known_bad_check(case: Case) -> Iterable[Problem]:
    for node, host in case.hosts():
        for entry in known_bad():
            if entry.fits(kernel=host.kernel, driver=host.driver_loaded, cmdline=host.cmdline):
                seen = f"kernel {host.kernel}, driver {host.driver_loaded or 'none'}"
                make = refuse if entry.level == "refuse" else warn
                yield make(node.name, f"{seen} ({entry.sources[0]})", why=entry.why, fix=entry.fix)


@check(
    "cma",
    part="host",
    covers="F19 S-cma",
    means="the contiguous memory that RDMA registration takes is there",
    why="ibv_reg_mr fails with 'Cannot allocate memory' at NCCL's start although there is plenty",
    fix="add kho=off to the kernel command line, or boot a 6.17 kernel; then reboot",
    applies=on_gpus,
)
def cma(case: Case) -> Iterable[Problem]:
    for node, host in case.hosts():
        total, free = host.memory.CmaTotal, host.memory.CmaFree
        if total is not None and free is not None and free > total:
            yield refuse(
                node.name,
                f"CmaFree must be at most CmaTotal, got {free >> 10} of {total >> 10} kB (/proc/meminfo)",
            )


@check(
    "driver-loaded",
    part="host",
    covers="S-driver-reboot",
    means="the driver that runs is the one that is installed",
    why="every CUDA and NVML call fails: 'Driver/library version mismatch'",
    fix="sudo reboot",
    applies=on_gpus,
)
def driver_loaded(case: Case) -> Iterable[Problem]:
    for node, host in case.hosts():
        if host.driver_loaded is None:
            yield refuse(
                node.name,
                "/sys/module/nvidia/version is missing: no NVIDIA driver is loaded",
                why="the engine finds no GPU",
                fix="sudo modprobe nvidia; nvidia-smi",
            )
        elif host.driver_installed and not host.driver_installed.startswith(host.driver_loaded):
            yield refuse(
                node.name,
                f"driver {host.driver_loaded} is loaded, {host.driver_installed} is installed (dpkg)",
            )


@check(
    "next-kernel",
    part="host",
    covers="S-next-kernel",
    means="the kernel of the next boot has an NVIDIA module",
    why="after the next reboot the node has no GPU",
    fix="sudo apt install linux-modules-nvidia-580-open-KERNEL for that kernel",
    applies=on_gpus,
)
def next_kernel(case: Case) -> Iterable[Problem]:
    for node, host in case.hosts():
        newest = host.next_kernel
        if newest and not newest.has_nvidia:
            yield warn(
                node.name,
                f"/boot has kernel {newest.version}, /lib/modules/{newest.version} has no nvidia.ko",
            )


@check(
    "same-kernel",
    part="host",
    covers="F84 S-software",
    means="kernel, driver and DGX OS release are the same on all nodes",
    why="nodes run at different speed, and the slowest sets the step; faults appear on one node only",
    fix="bring all nodes to the same release (sudo apt full-upgrade, reboot)",
    applies=on_gpus,
)
def same_kernel(case: Case) -> Iterable[Problem]:
    for title, name in (("kernel", "kernel"), ("driver", "driver_loaded"), ("DGX OS release", "dgx_release")):
        values = {node.name: getattr(host, name) for node, host in case.hosts()}
        if len(set(values.values())) > 1:
            yield warn(list(values)[-1], f"{title} must be the same on all nodes, got {by_value(values)}")


def _log_problems(case: Case, kind: str, make: Callable[[str, str], Problem] = warn) -> Iterable[Problem]:
    for node, host in case.hosts():
        found = host.kernel_log.kinds.get(kind)
        if found:
            yield make(node.name, f"{found.count} line(s) in the kernel's log, the last: {found.lines[-1]}")


@check(
    "xid",
    part="host",
    covers="S-xid",
    means="the kernel's log has no GPU fault (Xid) since the boot",
    why="after an Xid the GPU may be slow or refuse contexts until it is reset",
    fix="sudo reboot; if it comes back: nvidia-bug-report.sh",
    applies=on_gpus,
)
def xid(case: Case) -> Iterable[Problem]:
    return _log_problems(case, "xid")


@check(
    "aer",
    part="host",
    covers="S-pcie",
    means="the kernel's log has no PCIe error (AER) since the boot",
    why="corrected errors cost bandwidth, others take a port down",
    fix="reseat the cable, power the node off and unplug it for a minute",
    applies=on_gpus,
)
def aer(case: Case) -> Iterable[Problem]:
    return _log_problems(case, "aer")


@check(
    "out-of-memory",
    part="host",
    covers="F47 F48 S-oom S-earlyoom",
    means="nobody was killed for memory since the boot",
    why="the engine ended with signal 9 or 15 and nothing in its own log says why",
    fix="see what took the memory: sparkctl doctor, check memory; lower "
    "max_total_tokens or the loader's threads",
    applies=on_gpus,
)
def out_of_memory(case: Case) -> Iterable[Problem]:
    yield from _log_problems(case, "oom")
    for node, host in case.hosts():
        if host.kernel_log.earlyoom:
            yield warn(node.name, f"earlyoom ended a process: {host.kernel_log.earlyoom[-1]}")


@check(
    "gpu-memory-log",
    part="host",
    covers="F17 F43 S-nv-memory",
    means="the NVIDIA driver did not run out of memory since the boot",
    why="few such lines are normal at boot; many, or fresh ones, came before hard resets of the host",
    fix="shorten server.chunked_prefill_size or the context (sparkctl fit); reboot the node",
    applies=on_gpus,
)
def gpu_memory_log(case: Case) -> Iterable[Problem]:
    for node, host in case.hosts():
        found = host.kernel_log.kinds.get("nv_memory")
        if found and found.count > NORMAL_NV_MEMORY_LINES:
            yield warn(
                node.name, f"{found.count} lines NV_ERR_NO_MEMORY in the kernel's log: {found.lines[-1]}"
            )


@check(
    "nic-firmware",
    part="host",
    covers="S-firmware",
    means="the kernel's log has no ConnectX-7 firmware trouble since the boot",
    why="the ports are there and do not work, or vanish; an unasked firmware update was seen to do that",
    fix="power the node off, unplug it for a minute; do not install mlnx-fw-updater",
    applies=on_gpus,
)
def nic_firmware(case: Case) -> Iterable[Problem]:
    return _log_problems(case, "firmware", refuse)


@check(
    "cable-log",
    part="host",
    covers="S-replug",
    means="no fabric cable was pulled or lost since the boot",
    why="after re-plugging, 2.8 GB/s instead of over 20 were measured until the next "
    "reboot, at an unchanged link speed",
    fix="sudo reboot the node, then: sparkctl doctor --collective",
    applies=on_gpus,
)
def cable_log(case: Case) -> Iterable[Problem]:
    return _log_problems(case, "cable")


@check(
    "disk-log",
    part="host",
    means="the kernel's log has no disk error since the boot",
    why="weights or Engram rows may be read wrongly or stop being read",
    fix="sudo nvme smart-log /dev/nvme0",
)
def disk_log(case: Case) -> Iterable[Problem]:
    return _log_problems(case, "disk")


@check(
    "kernel-log",
    part="host",
    means="the kernel's log can be read",
    why="GPU faults, PCIe errors and killed processes cannot be seen",
    fix="sudo usermod -aG adm USER on the node, then log in again",
    applies=on_gpus,
)
def kernel_log(case: Case) -> Iterable[Problem]:
    for node, host in case.hosts():
        if host.kernel_log.problem:
            yield warn(node.name, f"the kernel's log cannot be read: {host.kernel_log.problem}")


CHECKS: tuple[Check, ...] = (
    known_bad_check,
    cma,
    driver_loaded,
    next_kernel,
    same_kernel,
    kernel_log,
    xid,
    aer,
    out_of_memory,
    gpu_memory_log,
    nic_firmware,
    cable_log,
    disk_log,
)
