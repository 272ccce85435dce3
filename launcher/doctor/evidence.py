"""What a node must have told before a check says ok of it: a fact that could not be read proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from launcher.doctor.fabric_facts import FabricFacts
from launcher.doctor.host_facts import HostFacts
from launcher.doctor.node_report import NodeReport
from launcher.doctor.software_facts import Checkpoint

Told = Callable[[NodeReport], bool]


def _host(look: Callable[[HostFacts], bool]) -> Told:
    return lambda report: report.host is not None and look(report.host)


def _fabric(look: Callable[[FabricFacts], bool]) -> Told:
    return lambda report: report.fabric is not None and look(report.fabric)


def _model(look: Callable[[Checkpoint], bool]) -> Told:
    return lambda report: (
        report.storage is not None and (report.storage.model is not None and look(report.storage.model))
    )


def _memory(*names: str) -> Told:
    return _host(lambda host: all(getattr(host.memory, name) is not None for name in names))


def _tool(name: str) -> Told:
    return lambda report: name not in report.tool_problems


def _gpus(report: NodeReport) -> bool:
    return report.gpu is not None and report.gpu.problem is None and bool(report.gpu.gpus)


def _disks(report: NodeReport) -> bool:
    return report.storage is not None and all(place.problem is None for place in report.storage.places)


def _engine(report: NodeReport) -> bool:
    identity = report.software.identity if report.software else None
    return identity is not None and identity.problem is None


_LOG = _host(lambda host: host.kernel_log.problem is None)
# Checks that are not here need no more than that their part of the report is there.
NEEDED: Mapping[str, Told] = {
    **dict.fromkeys(
        ("xid", "aer", "out-of-memory", "gpu-memory-log", "nic-firmware", "cable-log", "disk-log"), _LOG
    ),
    **dict.fromkeys(("gpu-busy", "gpu-clock", "same-clocks", "throttle"), _gpus),
    **dict.fromkeys(("disk", "writable", "network-disk"), _disks),
    **dict.fromkeys(
        ("engine-answers", "same-engine", "same-extension", "same-packages", "one-nccl"), _engine
    ),
    **dict.fromkeys(("environment", "route", "port-address", "twin-subnets", "neighbours"), _tool("ip")),
    "mtu": _fabric(lambda facts: all(hca.active_mtu for hca in facts.hcas if hca.is_active)),
    "forwarding": _fabric(lambda facts: facts.forward_policy is not None),
    "cma": _memory("CmaTotal", "CmaFree"),
    "driver-loaded": _host(lambda host: host.driver_installed is not None),
    "memory": _memory("MemTotal", "MemAvailable"),
    "page-cache": _memory("MemFree", "MemAvailable", "Cached"),
    "swap": _memory("SwapTotal", "SwapFree"),
    "memlock": _host(lambda host: host.limits.get("memlock_bytes") is not None),
    "open-files": _host(lambda host: host.limits.get("open_files") is not None),
    "clock": lambda report: report.clock_skew_s is not None,
    "checkpoint": _model(lambda model: model.weight_bytes > 0),
    "same-model": _model(lambda model: bool(model.hashes)),
}


def is_told(check: str, report: NodeReport) -> bool:
    """Whether what `check` judges could be read on that node."""
    return check not in NEEDED or NEEDED[check](report)
