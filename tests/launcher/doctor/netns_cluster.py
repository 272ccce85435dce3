"""A cluster of test nodes in network namespaces, for what really crosses a network."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from launcher.choose_inputs import Inputs
from launcher.connect import SshOptions, connect_all
from launcher.remote import Remote
from launcher.topology import Topology
from tests.hosts import NetnsHosts
from tests.launcher.doctor.clusters import recipe_for


def netns_topology(hosts: NetnsHosts, *, engine: str = "/nonexistent", **links: Any) -> Topology:
    nodes = [
        {
            "name": node.name,
            "ssh": {
                "host": node.address,
                "user": node.user,
                "port": node.port,
                "identity_file": str(hosts.client_key),
                "known_hosts_file": str(hosts.known_hosts),
            },
            "fabric": {"address": node.address, "interface": "fabric0"},
            "paths": {"engine": engine},
        }
        for node in hosts.nodes
    ]
    return Topology.model_validate(
        {
            "schema_version": 1,
            "name": "netns",
            "links": {"layout": "switch", "mtu": 1500, **links},
            "nodes": nodes,
        }
    )


def netns_inputs(hosts: NetnsHosts, *, engine: str = "/nonexistent", **links: Any) -> Inputs:
    """A recipe for the CPU engine: these nodes have no GPU."""
    count = len(hosts.nodes)
    recipe = recipe_for(
        "pair",
        engine={"runtime": "cpu"},
        parallelism={"nodes": count, "tp": count},
        model={"path": "tiny", "served_name": "m"},
    )
    return Inputs(recipe=recipe, topology=netns_topology(hosts, engine=engine, **links), how="test nodes")


def assert_nothing_is_left(hosts: NetnsHosts) -> None:
    """The last answer is sent before the node's side ends, so give it a moment."""
    deadline_s = time.monotonic() + 3
    while any(node.processes() for node in hosts.nodes) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert [process for node in hosts.nodes for process in node.processes()] == []
    assert all(node.listening_ports() == set() for node in hosts.nodes)


@contextmanager
def connected(inputs: Inputs) -> Iterator[Mapping[str, Remote]]:
    with connect_all(inputs.topology.nodes, SshOptions()) as remotes:
        yield remotes
