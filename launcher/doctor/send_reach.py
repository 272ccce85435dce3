"""Send the reachability probe: every node listens, then every node tries every other, all at once."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from launcher.call_node import Answer, NodeStream, ask_node
from launcher.doctor.case import MELLANOX, Case
from launcher.doctor.reach_report import Attempt, Hello, ReachReport
from launcher.errors import SparkctlError
from launcher.make_plan import run_ports
from launcher.plan import NodePlan
from launcher.remote import Remote
from launcher.run_on_all import run_on_all

LISTEN_TIMEOUT_S = 5.0
TRY_TIMEOUT_S = 10.0
# Packets that are still on their way when the last answer is here.
SETTLE_S = 0.05

Listening = dict[str, tuple[NodeStream, Answer]]


def send_reach(case: Case, remotes: Mapping[str, Remote]) -> ReachReport:
    """Blocks for a fraction of a second, or two where packets are lost. Never raises for a node."""
    started_s = time.monotonic()
    token = secrets.token_hex(8)
    problems: dict[str, str] = {}
    taking_part = [
        remotes[node.name] for node in case.plan.nodes if case.reports[node.name].fabric is not None
    ]
    opened = run_on_all(taking_part, partial(_listen, case, token))
    listening: Listening = {name: item.value for name, item in opened.items() if item.value is not None}
    problems |= {
        name: f"it cannot listen: {item.error.message}" for name, item in opened.items() if item.error
    }
    try:
        for name, (_, said) in listening.items():
            for port, reason in said.get("busy", []):
                problems.setdefault(name, f"it cannot listen on port {port}: {reason}")
        tried = run_on_all([remotes[name] for name in listening], partial(_try, case, token, listening))
        problems |= {
            name: f"it cannot send: {item.error.message}" for name, item in tried.items() if item.error
        }
        time.sleep(SETTLE_S)
        heard = {name: list(_rest(stream)) for name, (stream, _) in listening.items()}
    finally:
        for stream, _ in listening.values():
            stream.close()
    hellos, arrived = _sort(heard)
    attempts = tuple(
        _attempt(name, raw, arrived)
        for name, item in tried.items()
        for raw in (item.value or {}).get("attempts", [])
    )
    return ReachReport(
        attempts=attempts, hellos=hellos, problems=problems, seconds=round(time.monotonic() - started_s, 3)
    )


def meeting_address(node: NodePlan) -> str:
    """Where ranks meet: what the plan tells SGLang."""
    return node.environment.get("SGLANG_HOST_IP", node.node.fabric.address)


def _listen(case: Case, token: str, remote: Remote) -> tuple[NodeStream, Answer]:
    node = case.plan.node(remote.node)
    rendezvous, heartbeat = run_ports(case.plan.run_id)
    addresses = list(dict.fromkeys([meeting_address(node), *_data_addresses(case, node)]))
    stream = NodeStream(
        remote,
        "reach_listen",
        token=token,
        addresses=addresses,
        hello_port=heartbeat,
        ports=[rendezvous, heartbeat] if node.is_head else [],
    )
    try:
        said = stream.read(LISTEN_TIMEOUT_S)
    except (SparkctlError, EOFError):
        stream.close()
        raise
    if said is None:
        stream.close()
        raise SparkctlError(f"no answer within {LISTEN_TIMEOUT_S:.0f} s", node=remote.node)
    return stream, said


def _data_addresses(case: Case, node: NodePlan) -> Iterator[str]:
    facts = case.reports[node.name].fabric
    for port in case.data_ports(node, facts) if facts else ():
        if port.is_up:
            yield from port.hosts


def _try(case: Case, token: str, listening: Listening, remote: Remote) -> Answer:
    node = case.plan.node(remote.node)
    facts = case.reports[node.name].fabric
    ports = list(case.data_ports(node, facts)) if facts else []
    # Hello on every fabric port, also those that the plan does not use: the map shows where they lead.
    ports += [
        port for port in (facts.interfaces if facts else ()) if port.driver == MELLANOX and port not in ports
    ]
    targets = [
        _target(case, node, other, listening[other.name][1])
        for other in case.plan.nodes
        if other.name != node.name and other.name in listening
    ]
    _, heartbeat = run_ports(case.plan.run_id)
    return ask_node(
        remote,
        "reach_try",
        timeout_s=TRY_TIMEOUT_S,
        node=node.name,
        token=token,
        source=meeting_address(node),
        targets=targets,
        hello={"port": heartbeat, "interfaces": [port.name for port in ports if port.is_up]},
    )


def _target(case: Case, node: NodePlan, other: NodePlan, said: Answer) -> dict[str, Any]:
    meeting = meeting_address(other)
    rendezvous, heartbeat = run_ports(case.plan.run_id)
    busy = {port for port, _ in said.get("busy", [])}
    ports = [[meeting, port] for port in (rendezvous, heartbeat) if other.is_head and port not in busy]
    udp = [
        [own, theirs, said["udp"][theirs], mtu]
        for own, theirs, mtu in shared_subnets(case, node, other)
        if theirs in said["udp"]
    ]
    tcp = [meeting, said["tcp"][meeting]] if meeting in said["tcp"] else []
    return {"name": other.name, "tcp": tcp, "ports": ports, "udp": udp}


def shared_subnets(case: Case, node: NodePlan, other: NodePlan) -> Iterator[tuple[str, str, int]]:
    """(own address, the other's, MTU of a full frame) for every subnet that data ports of both are in."""
    mine, theirs = case.reports[node.name].fabric, case.reports[other.name].fabric
    wanted = case.links.mtu if case.links else 0
    for port in case.data_ports(node, mine) if mine else ():
        for far in case.data_ports(other, theirs) if theirs else ():
            for network in set(port.networks) & set(far.networks):
                own = next(
                    host for host, net in zip(port.hosts, port.networks, strict=False) if net == network
                )
                address = next(
                    host for host, net in zip(far.hosts, far.networks, strict=False) if net == network
                )
                # Ports that are all smaller than the topology says are another finding, which only warns.
                largest = max(port.mtu or 0, far.mtu or 0)
                yield own, address, min(wanted or largest, largest)


def _rest(stream: NodeStream) -> Iterator[Answer]:
    try:
        while (line := stream.read(0.02)) is not None:
            yield line
    except (EOFError, SparkctlError):  # it ended: what it told before counts
        return


def _sort(heard: Mapping[str, list[Answer]]) -> tuple[tuple[Hello, ...], set[tuple[str, ...]]]:
    hellos: list[Hello] = []
    arrived: set[tuple[str, ...]] = set()
    for name, lines in heard.items():
        for line in lines:
            if "hello" in line and line["hello"]["source"] != name:  # a broadcast comes back to its sender
                hellos.append(Hello(target=name, **line["hello"]))
            if "arrived" in line:
                said = line["arrived"]
                arrived.add((said["source"], name, said["kind"], said["address"]))
    return tuple(hellos), arrived


def _attempt(source: str, raw: Answer, arrived: set[tuple[str, ...]]) -> Attempt:
    key = (source, raw["target"], raw["kind"], raw["address"])
    return Attempt(source=source, arrived=key in arrived or not raw["error"], **raw)
