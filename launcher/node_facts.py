"""Facts that a node tells about itself (answer of `launcher/node/probe.py`), typed."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from launcher.errors import NodeFailed


class Facts(BaseModel):
    """Facts come from another machine: a key that is new is fine, one that is missing or wrong is not."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class InterfaceFacts(Facts):
    name: str
    addresses: tuple[str, ...]
    mtu: int | None
    state: str | None
    speed_mbps: int | None


class GidFacts(Facts):
    index: int
    address: str


class HcaFacts(Facts):
    name: str
    netdev: str | None
    state: str | None
    rocev2_gids: tuple[GidFacts, ...]


class RunFacts(Facts):
    run_id: str
    status: str
    started: str


class ModelFacts(Facts):
    path: str
    problem: str | None
    weight_bytes: int | None = None


class PackedFacts(Facts):
    """The packed Engram files of this node's ranks."""

    path: str
    problem: str | None


class EngineFacts(Facts):
    problem: str | None
    python: str | None = None
    sglang: str | None = None
    sparkctl: str | None = None
    torch: str | None = None
    sglang_router: str | None = None


class NodeFacts(Facts):
    hostname: str
    user: str
    home: Annotated[str, Field(pattern="^/")]
    architecture: str
    kernel: str
    boot_id: str
    memory_total_bytes: int | None
    memory_available_bytes: int
    paths: dict[str, str]
    state_problem: str | None
    interfaces: tuple[InterfaceFacts, ...]
    hcas: tuple[HcaFacts, ...]
    busy_ports: tuple[tuple[str, int, str], ...]
    live_runs: tuple[RunFacts, ...]
    model: ModelFacts | None
    packed: PackedFacts | None = None
    engine: EngineFacts

    def interface(self, name: str) -> InterfaceFacts | None:
        return next((item for item in self.interfaces if item.name == name), None)


def parse_facts(node: str, answer: dict[str, object]) -> NodeFacts:
    """Raises NodeFailed when the node answered half or garbage."""
    try:
        return NodeFacts.model_validate(answer)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise NodeFailed(f"the node's facts are wrong at {where}: {first['msg']}", node=node) from error
