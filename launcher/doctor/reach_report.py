"""What came through between the nodes, as the doctor's own packets found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["tcp", "udp", "jumbo", "port"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One node's attempt to reach another. `kind`: `tcp` and `udp` to the address where ranks meet, `port` to
    a port of the run, `jumbo` a full frame over the fabric that must not be cut. `error` is empty when an
    answer came."""

    source: str
    target: str
    kind: Kind
    address: str
    port: int
    round_trip_s: float | None
    error: str
    size_bytes: int = 0
    arrived: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A packet to everybody on one cable: who sent it from where, who heard it where."""

    source: str
    source_interface: str
    target: str
    target_interface: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachReport:
    """`problems`: node -> why it could not take part."""

    attempts: tuple[Attempt, ...] = ()
    hellos: tuple[Hello, ...] = ()
    problems: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
