"""GPUs: present, free, at full clock, alike on all nodes."""

from __future__ import annotations

from collections.abc import Iterable

from launcher.doctor.case import Case, by_value, gib
from launcher.doctor.check import Check, check, on_gpus
from launcher.doctor.finding import Problem, refuse, warn

BUSY_BYTES = 1 << 30
SLOW_CLOCK_MHZ, LOADED_PERCENT = 1000, 50
# 2190 against 2520 MHz was reported for mixed drivers; boxes of one kind differ by less than 2 %.
CLOCK_SPREAD = 1.05
HOT_CELSIUS = 85
# NVML: 0x8 HW slowdown, 0x20 SW thermal, 0x40 HW thermal, 0x80 power brake; 0x4 is the software power cap.
THROTTLES = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}


@check(
    "gpu",
    part="gpu",
    covers="S-no-gpu S-driver-reboot",
    means="nvidia-smi answers and shows the GPUs that the topology names",
    why="the engine ends with 'No CUDA GPUs are available'",
    fix="nvidia-smi on the node; after a driver update: sudo reboot",
    applies=on_gpus,
)
def gpu(case: Case) -> Iterable[Problem]:
    for node, facts in case.gpus():
        if facts.problem:
            yield refuse(node.name, f"nvidia-smi: {facts.problem}")
        elif len(facts.gpus) < node.node.gpus:
            yield refuse(
                node.name, f"{node.node.gpus} GPU(s) must be there, got {len(facts.gpus)} (nvidia-smi)"
            )
        for item in facts.gpus:
            if item.name and "GB10" not in item.name:
                yield warn(
                    node.name,
                    f"GPU {item.index} must be an NVIDIA GB10, got {item.name}",
                    why="recipes and memory figures are made for the GB10",
                    fix="take a recipe made for this GPU",
                )


@check(
    "gpu-busy",
    part="gpu",
    covers="S-stale-engine F13",
    means="nobody computes on the GPUs",
    why="memory is shared with whoever is there: loading fails or the KV pool shrinks",
    fix="end the processes that are named: sparkctl down, docker ps, kill",
    applies=on_gpus,
)
def gpu_busy(case: Case) -> Iterable[Problem]:
    for node, facts in case.gpus():
        for item in facts.processes:
            if item.used_bytes is None or item.used_bytes >= BUSY_BYTES:
                held = gib(item.used_bytes) if item.used_bytes is not None else "unknown memory"
                yield refuse(
                    node.name, f"process {item.pid} ({item.name}) holds {held} on the GPU (nvidia-smi)"
                )


@check(
    "gpu-clock",
    part="gpu",
    covers="F84 S-clock-low",
    means="no GPU is stuck at a low clock under load",
    why="each step takes half as long again until the node loses its power supply",
    fix="power the node off, unplug it for a minute",
    applies=on_gpus,
)
def gpu_clock(case: Case) -> Iterable[Problem]:
    for node, facts in case.gpus():
        for item in facts.gpus:
            clock, used = _number(item.clocks_sm), _number(item.utilization_gpu)
            if clock is not None and used is not None and used >= LOADED_PERCENT and clock < SLOW_CLOCK_MHZ:
                yield warn(
                    node.name,
                    f"SM clock must be over {SLOW_CLOCK_MHZ} MHz at {used:.0f} % load, got {clock:.0f} MHz "
                    f"at {item.power_draw} W",
                )


@check(
    "same-clocks",
    part="gpu",
    covers="F84 S-clocks-differ",
    means="the GPUs of all nodes may run at the same clock",
    why="the slowest rank sets every step; results of such a cluster compare with nothing",
    fix="same driver everywhere; nvidia-smi -q -d CLOCK; sudo nvidia-smi -rgc takes a lock away",
    applies=on_gpus,
)
def same_clocks(case: Case) -> Iterable[Problem]:
    for title, name in (
        ("maximum SM clock", "clocks_max_sm"),
        ("application clock", "clocks_applications_graphics"),
    ):
        values = {
            node.name: value
            for node, facts in case.gpus()
            if facts.gpus and (value := _number(getattr(facts.gpus[0], name))) is not None
        }
        if values and max(values.values()) > min(values.values()) * CLOCK_SPREAD:
            slow = min(values, key=lambda node: values[node])
            shown = {node: f"{value:.0f} MHz" for node, value in values.items()}
            yield warn(slow, f"{title} must be the same on all nodes, got {by_value(shown)}")


@check(
    "throttle",
    part="gpu",
    covers="S-throttle",
    means="no GPU is held back by power or heat",
    why="all ranks wait for this one",
    fix="check air flow and the power supply that came with the node",
    applies=on_gpus,
)
def throttle(case: Case) -> Iterable[Problem]:
    for node, facts in case.gpus():
        for item in facts.gpus:
            mask = _hex(item.clocks_throttle_reasons_active)
            reasons = [text for bit, text in THROTTLES.items() if mask & bit]
            hot = _number(item.temperature_gpu)
            if reasons:
                yield warn(
                    node.name,
                    f"GPU {item.index} is throttled: {', '.join(reasons)} (mask {mask:#x}, {hot} C)",
                )
            elif hot is not None and hot > HOT_CELSIUS:
                yield warn(node.name, f"GPU {item.index} must be below {HOT_CELSIUS} C, got {hot:.0f} C")


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _hex(text: str | None) -> int:
    try:
        return int(text, 16) if text else 0
    except ValueError:
        return 0


CHECKS: tuple[Check, ...] = (gpu, gpu_busy, gpu_clock, same_clocks, throttle)
