"""Clocks, temperatures and memory of every node, through the probe that `sparkctl doctor` uses."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from launcher.call_node import Answer, ask_node
from launcher.connect import SshOptions, connect_all
from launcher.doctor.gather_reports import gather_reports, questions_for_plan
from launcher.doctor.node_report import NodeReport
from launcher.plan import LaunchPlan, NodePlan
from launcher.remote import Remote
from launcher.results.manifest import NodeDescription
from launcher.results.records import NodeSample
from launcher.run_on_all import run_on_all

EVERY_S = 10.0
_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredNodes:
    """`versions`: distribution -> version of the head's engine; empty where nodes run a docker image."""

    nodes: tuple[NodeDescription, ...] = ()
    versions: Mapping[str, str | None] = field(default_factory=dict)


class NodeSampler:
    """Connections stay open for the run. A node that does not answer is in `problems`, once."""

    def __init__(self, plan: LaunchPlan, options: SshOptions, origin_s: float) -> None:
        self._plan = plan
        self._alias = {node.name: f"node-{node.node_rank}" for node in plan.nodes}
        self._open = connect_all([node.node for node in plan.nodes], options)
        self._origin_s = origin_s
        self._next_s = 0.0
        self.problems: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._remotes = self._open.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def sample_if_due(self) -> list[NodeSample]:
        """Between waves, never in one: the probe costs the node's CPU."""
        if time.monotonic() < self._next_s:
            return []
        found = []
        for name, answer in self._ask(["host", "gpu"]).items():
            found.append(make_sample(self._alias[name], time.monotonic() - self._origin_s, answer))
        self._next_s = time.monotonic() + EVERY_S
        return found

    def describe(self) -> MeasuredNodes:
        """Once a run. Engines whose versions differ between nodes are told in `problems`."""
        reports = gather_reports(
            self._remotes, questions_for_plan(self._plan), ("host", "gpu", "software"), time.time
        )
        head = _versions(reports[self._plan.head.name])
        for name, report in reports.items():
            if report.host is None:
                self.problems.setdefault(self._alias[name], "; ".join(report.problems.values()))
            elif _versions(report) != head:
                self.problems.setdefault(self._alias[name], "its engine's packages are not those of the head")
        return MeasuredNodes(
            nodes=tuple(
                _describe(node, self._alias[node.name], reports[node.name]) for node in self._plan.nodes
            ),
            versions=head,
        )

    def _ask(self, parts: list[str]) -> dict[str, Answer]:
        def ask(remote: Remote) -> Answer:
            return ask_node(
                remote, "doctor", timeout_s=_TIMEOUT_S, parts=parts, peers={}, paths={}, model_path=None,
                engine_python="python3", runtime=self._plan.runtime, image=None, environment={},
            )  # fmt: skip

        answers = {}
        for name, result in run_on_all(list(self._remotes.values()), ask).items():
            if result.value is not None:
                answers[name] = result.value
            elif result.error is not None:
                self.problems.setdefault(self._alias[name], result.error.message)
        return answers


def make_sample(alias: str, time_s: float, answer: Answer) -> NodeSample:
    """Pure. What a node does not tell stays None; of several GPUs the slowest and the hottest count."""
    gpus = (answer.get("gpu") or {}).get("gpus") or []
    memory = (answer.get("host") or {}).get("memory") or {}
    swap_total, swap_free = memory.get("SwapTotal"), memory.get("SwapFree")
    clocks, heats = _numbers(gpus, "clocks_sm"), _numbers(gpus, "temperature_gpu")
    powers, shares = _numbers(gpus, "power_draw"), _numbers(gpus, "utilization_gpu")
    return NodeSample(
        node=alias,
        time_s=round(max(0.0, time_s), 6),
        gpu_clock_mhz=min(clocks, default=None),
        gpu_temperature_c=max(heats, default=None),
        gpu_power_w=sum(powers) if powers else None,
        gpu_used_share=max(shares) / 100 if shares else None,
        memory_available_bytes=memory.get("MemAvailable"),
        swap_used_bytes=None if swap_total is None or swap_free is None else swap_total - swap_free,
    )


def _numbers(gpus: list[dict[str, Any]], key: str) -> list[float]:
    found = []
    for gpu in gpus:
        try:
            found.append(float(gpu[key]))
        except (KeyError, TypeError, ValueError):
            continue  # [N/A] of a GPU without that sensor
    return found


def _versions(report: NodeReport) -> dict[str, str | None]:
    identity = report.software.identity if report.software else None
    return dict(identity.versions) if identity is not None and identity.problem is None else {}


def _describe(node: NodePlan, alias: str, report: NodeReport) -> NodeDescription:
    host, gpus = report.host, report.gpu.gpus if report.gpu else ()
    return NodeDescription(
        node=alias,
        ranks=node.ranks,
        architecture=host.cpu.architecture if host else None,
        kernel=host.kernel if host else None,
        cpu=host.cpu.model if host else None,
        num_cpus=host.cpu.count if host else None,
        memory_total_bytes=host.memory.MemTotal if host else None,
        gpu=gpus[0].name if gpus else None,
        num_gpus=len(gpus) if gpus else None,
        driver=(gpus[0].driver_version if gpus else None) or (host.driver_loaded if host else None),
    )
