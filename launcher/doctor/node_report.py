"""What one node tells the doctor (answer of `launcher/node/doctor.py`), typed part by part.

A part that is missing or garbage is None here and stands in `problems`: the checks of other parts still run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError

from launcher.doctor.fabric_facts import FabricFacts
from launcher.doctor.host_facts import GpuFacts, HostFacts
from launcher.doctor.software_facts import SoftwareFacts, StorageFacts
from launcher.node_facts import Facts

PartT = TypeVar("PartT", bound=Facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """`problems`: part -> why it is missing.
    `clock_skew_s`: the node's clock minus ours, give or take the error."""

    node: str
    host: HostFacts | None = None
    fabric: FabricFacts | None = None
    gpu: GpuFacts | None = None
    storage: StorageFacts | None = None
    software: SoftwareFacts | None = None
    tool_problems: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    clock_skew_s: float | None = None
    clock_error_s: float | None = None


def read_report(
    node: str, answer: dict[str, Any], parts: tuple[str, ...], *, sent_unix: float, received_unix: float
) -> NodeReport:
    """Never raises for what a node answers: each part is taken or named as a problem."""
    problems: dict[str, str] = {}

    def part(name: str, model: type[PartT]) -> PartT | None:
        if name not in parts:
            return None
        try:
            return _parse(answer.get(name), model)
        except ValueError as error:
            problems[name] = str(error)
            return None

    skew_s, error_s = _clock(answer, sent_unix, received_unix)
    tools = answer.get("tool_problems")
    return NodeReport(
        node=node,
        host=part("host", HostFacts),
        fabric=part("fabric", FabricFacts),
        gpu=part("gpu", GpuFacts),
        storage=part("storage", StorageFacts),
        software=part("software", SoftwareFacts),
        tool_problems={str(key): str(value) for key, value in tools.items()}
        if isinstance(tools, dict)
        else {},
        problems=problems,
        clock_skew_s=skew_s,
        clock_error_s=error_s,
    )


def failed_report(node: str, reason: str) -> NodeReport:
    """A node that did not answer, or answered what is no object."""
    return NodeReport(node=node, problems={"all": reason})


def _parse(value: object, model: type[PartT]) -> PartT:
    if not isinstance(value, dict):
        raise ValueError(f"the node answered {type(value).__name__} in its place")
    if set(value) == {"problem"}:
        raise ValueError(f"its probe failed: {value['problem']}")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(item) for item in first["loc"])
        raise ValueError(f"the node answered garbage at {where}: {first['msg']}") from error


def _clock(
    answer: dict[str, Any], sent_unix: float, received_unix: float
) -> tuple[float | None, float | None]:
    """As in NTP: the answer's two readings lie between ours; the way there and back bounds the error."""
    started, ended = answer.get("started_unix"), answer.get("ended_unix")
    if not isinstance(started, (int, float)) or not isinstance(ended, (int, float)):
        return None, None
    skew_s = ((started - sent_unix) + (ended - received_unix)) / 2
    error_s = max(0.0, ((received_unix - sent_unix) - (ended - started)) / 2)
    return skew_s, error_s
