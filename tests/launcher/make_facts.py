"""Facts of nodes as `launcher/node/probe.py` gives them, for tests of pure code."""

from __future__ import annotations

from typing import Any

from launcher.node_facts import NodeFacts
from launcher.recipe import Recipe
from launcher.topology import Node, Topology


def make_facts(node: Node, recipe: Recipe, **changes: Any) -> NodeFacts:
    """A healthy node: everything that topology and recipe ask for is there."""
    home = f"/home/{node.ssh.user or 'spark'}"
    paths = {key: value.replace("~", home) for key, value in node.paths.model_dump().items()}
    interfaces = [
        {"name": "lo", "addresses": ["127.0.0.1"], "mtu": 65536, "state": "unknown", "speed_mbps": None}
    ]
    if node.fabric.interface != "lo":
        interfaces.append(_interface(node.fabric.interface, node.fabric.address, 200000))
    if node.fabric.bootstrap_interface not in (node.fabric.interface, "lo"):
        last = node.fabric.address.rsplit(".", 1)[-1]
        interfaces.append(_interface(node.fabric.bootstrap_interface, f"192.0.2.{last}", 10000))
    model_path = (
        recipe.model.path if recipe.model.path.startswith("/") else f"{paths['models']}/{recipe.model.path}"
    )
    facts = {
        "hostname": node.name,
        "user": node.ssh.user or "spark",
        "home": home,
        "architecture": "aarch64",
        "kernel": "6.17.0-1014-nvidia",
        "boot_id": "00000000-0000-0000-0000-000000000000",
        "memory_total_bytes": 127600748 * 1024,
        "memory_available_bytes": 118 << 30,
        "paths": paths,
        "state_problem": None,
        "interfaces": interfaces,
        "hcas": [
            {
                "name": hca,
                "netdev": node.fabric.interface,
                "state": "4: ACTIVE",
                "rocev2_gids": [{"index": 3, "address": node.fabric.address}],
            }
            for hca in node.fabric.hcas
        ],
        "busy_ports": [],
        "live_runs": [],
        "model": {"path": model_path, "problem": None, "weight_bytes": 1 << 30},
        "engine": {
            "problem": None,
            "python": f"{paths['engine']}/bin/python",
            "sglang": recipe.engine.sglang_version,
            "sparkctl": "0.1.0",
            "torch": "2.14.1",
        },
    }
    return NodeFacts.model_validate({**facts, **changes})


def _interface(name: str, address: str, speed_mbps: int) -> dict[str, Any]:
    return {"name": name, "addresses": [address], "mtu": 9000, "state": "up", "speed_mbps": speed_mbps}


def all_facts(topology: Topology, recipe: Recipe) -> dict[str, NodeFacts]:
    return {node.name: make_facts(node, recipe) for node in topology.nodes}
