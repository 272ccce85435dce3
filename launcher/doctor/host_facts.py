"""Typed facts of a node's kernel, memory, processes, limits, logs and GPUs."""

from __future__ import annotations

from launcher.node_facts import Facts


class Memory(Facts):
    """Bytes, by the kernel's names."""

    MemTotal: int | None
    MemFree: int | None
    MemAvailable: int | None
    Cached: int | None
    SwapTotal: int | None
    SwapFree: int | None
    CmaTotal: int | None
    CmaFree: int | None


class ProcessFacts(Facts):
    pid: int
    name: str
    title: str
    rss_bytes: int


class NextKernel(Facts):
    version: str
    has_nvidia: bool


class LogLines(Facts):
    count: int
    lines: tuple[str, ...]


class KernelLog(Facts):
    problem: str | None
    kinds: dict[str, LogLines]
    earlyoom: tuple[str, ...]


class CpuFacts(Facts):
    """`model`: the names of its cores; `count`: of cores that the kernel runs on."""

    architecture: str | None
    model: str | None
    count: int | None


class HostFacts(Facts):
    """Limits as the kernel prints them: a number of bytes or files, or `unlimited`."""

    kernel: str
    cmdline: str | None
    dgx_release: str | None
    driver_loaded: str | None
    driver_installed: str | None
    next_kernel: NextKernel | None
    cpu: CpuFacts
    memory: Memory
    swapped_in_pages: int | None
    swappiness: int | None
    largest: tuple[ProcessFacts, ...]
    engines: tuple[ProcessFacts, ...]
    desktop: tuple[ProcessFacts, ...]
    limits: dict[str, str | None]
    ntp_synchronized: bool | None
    hostname_addresses: tuple[str, ...]
    kernel_log: KernelLog


class Gpu(Facts):
    """As nvidia-smi prints; None where the driver does not tell."""

    index: str | None
    name: str | None
    driver_version: str | None
    pstate: str | None
    clocks_sm: str | None
    clocks_max_sm: str | None
    clocks_applications_graphics: str | None
    clocks_throttle_reasons_active: str | None
    power_draw: str | None
    temperature_gpu: str | None
    utilization_gpu: str | None


class GpuProcess(Facts):
    pid: int
    name: str
    used_bytes: int | None


class GpuFacts(Facts):
    problem: str | None
    gpus: tuple[Gpu, ...]
    processes: tuple[GpuProcess, ...]
