"""Frozen model of a topology file: the nodes, how each is reached, its fabric, its paths, and the cables.

Nothing is shared between nodes but what the file's `defaults` section says, merged key by key into each node.
A key that is None leaves the choice to ~/.ssh/config (ssh) or to the check of the node (gid_index).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from launcher.config_problem import ConfigProblem, raise_problems
from launcher.frozen_model import FrozenModel, TextTuple
from launcher.merge_maps import merge_maps
from launcher.topology_rules import topology_problems

MAX_NODES = 8
NodeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
# Linux allows 15 bytes, without slash or space.
Interface = Annotated[str, Field(pattern=r"^[^/\s:]{1,15}$")]
Text = Annotated[str, Field(min_length=1)]
# `up` prints an ssh line to paste: a name that begins with a dash would be an option there.
HostName = Annotated[str, Field(pattern=r"^[^-\s]\S{0,254}$")]


class Ssh(FrozenModel):
    """How the launcher's machine reaches the node; files are on the launcher's machine, ~ is allowed."""

    host: HostName | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None  # None: ~/.ssh/config, else 22
    user: HostName | None = None
    identity_file: Text | None = None
    proxy_jump: Text | None = None
    known_hosts_file: Text | None = None


class Fabric(FrozenModel):
    """The node's own address and ports on the network between nodes; names differ from node to node."""

    address: Text
    interface: Interface
    socket_interface: Interface | None = None
    hcas: TextTuple = ()
    gid_index: Annotated[int, Field(ge=0, le=254)] | None = None

    @field_validator("address")
    @classmethod
    def _check_address(cls, address: str) -> str:
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise_problems(
                [
                    ConfigProblem(
                        at=(), message=f"fabric.address must be an IPv4 or IPv6 address, got {address!r}"
                    )
                ]
            )
        return address

    @property
    def bootstrap_interface(self) -> str:
        """Interface that reaches every other node by TCP: what GLOO and NCCL meet on."""
        return self.socket_interface or self.interface

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.address).is_loopback


class Paths(FrozenModel):
    """Places on the node itself; ~ is the home of the user that logs in there."""

    engine: Text = "~/.local/share/sparkctl/venv"
    models: Text = "~/models"
    engram: Text = "~/engram"
    state: Text = "~/.local/state/sparkctl"
    cache: Text = "~/.cache/sparkctl"


class Node(FrozenModel):
    """One machine, or one of several stand-ins for a machine when `connection` is local."""

    name: NodeName
    connection: Literal["ssh", "local"] = "ssh"
    ssh: Ssh = Ssh()
    fabric: Fabric
    gpus: Annotated[int, Field(ge=1, le=8)] = 1
    paths: Paths = Paths()
    environment: dict[str, str] = {}


class Cable(FrozenModel):
    """Two ends, each NODE/INTERFACE."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)

    from_: Annotated[str, Field(alias="from", pattern=r"^[^/\s]+/[^/\s]+$")]
    to: Annotated[str, Field(pattern=r"^[^/\s]+/[^/\s]+$")]


class Links(FrozenModel):
    layout: Literal["switch", "triangle", "pair", "ring", "loopback"]
    mtu: Annotated[int, Field(ge=1280, le=65536)] = 9000
    cables: Annotated[tuple[Cable, ...], Field(strict=False)] = ()


class Topology(FrozenModel):
    file_keys: ClassVar[tuple[str, ...]] = ("defaults",)

    schema_version: Literal[1]
    name: NodeName
    links: Links
    nodes: Annotated[tuple[Node, ...], Field(strict=False, min_length=1, max_length=MAX_NODES)]

    @model_validator(mode="before")
    @classmethod
    def _merge_defaults(cls, data: Any) -> Any:
        return apply_defaults(data) if isinstance(data, Mapping) else data

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        raise_problems(topology_problems(self))
        return self

    def resolved_nodes(self) -> tuple[Node, ...]:
        """Every node with the defaults merged in, in file order: rank order."""
        return self.nodes


def apply_defaults(data: Mapping[str, object]) -> dict[str, object]:
    """The same topology without its `defaults` section: each node holds what it inherits."""
    rest = {key: value for key, value in data.items() if key != "defaults"}
    defaults, nodes = data.get("defaults", {}), data.get("nodes")
    if not isinstance(defaults, Mapping):
        message = f"defaults must be a map of keys, got {defaults!r}"
        raise_problems([ConfigProblem(at=("defaults",), message=message)])
    elif isinstance(nodes, (list, tuple)):
        rest["nodes"] = [merge_maps(defaults, node) if isinstance(node, Mapping) else node for node in nodes]
    return rest


def local_topology(num_nodes: int) -> Topology:
    """The embedded default: `num_nodes` stand-ins for nodes on this machine, on loopback."""
    return Topology.model_validate(
        {
            "schema_version": 1,
            "name": f"local-{num_nodes}x",
            "links": {"layout": "loopback", "mtu": 65536},
            "defaults": {"connection": "local", "fabric": {"address": "127.0.0.1", "interface": "lo"}},
            "nodes": [
                {"name": f"node-{index}", "paths": {"state": f"~/.local/state/sparkctl/node-{index}"}}
                for index in range(num_nodes)
            ],
        }
    )
