"""Recorded clusters: a pair and a triangle of healthy Sparks, one of which a test makes ill."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.doctor.case import Case
from launcher.doctor.examine import examine
from launcher.doctor.finding import Finding
from launcher.doctor.node_report import NodeReport, read_report
from launcher.doctor.reach_report import ReachReport
from launcher.make_plan import make_plan
from launcher.node.doctor import doctor
from launcher.recipe import Recipe
from launcher.topology import Topology
from tests.launcher.doctor.spark_tree import HOME, SparkTree, healthy_spark
from tests.launcher.make_facts import all_facts

PARTS = ("host", "fabric", "gpu", "storage", "software")
MESH = {"NCCL_IB_SUBNET_AWARE_ROUTING": "1", "NCCL_IB_MERGE_NICS": "0"}
P0, P0_TWIN, P1, P1_TWIN = "enp1s0f0np0", "enP2p1s0f0np0", "enp1s0f1np1", "enP2p1s0f1np1"
# node -> port -> address; port 0 of each to port 1 of the next in the triangle
ADDRESSES: dict[str, dict[str, dict[str, str]]] = {
    "pair": {
        "spark-a": {P0: "192.168.100.1/24", P0_TWIN: "192.168.101.1/24"},
        "spark-b": {P0: "192.168.100.2/24", P0_TWIN: "192.168.101.2/24"},
    },
    "triangle": {
        "spark-a": {
            P0: "192.168.0.1/24",
            P0_TWIN: "192.168.1.1/24",
            P1: "192.168.4.2/24",
            P1_TWIN: "192.168.5.2/24",
        },
        "spark-b": {
            P0: "192.168.2.1/24",
            P0_TWIN: "192.168.3.1/24",
            P1: "192.168.0.2/24",
            P1_TWIN: "192.168.1.2/24",
        },
        "spark-c": {
            P0: "192.168.4.1/24",
            P0_TWIN: "192.168.5.1/24",
            P1: "192.168.2.2/24",
            P1_TWIN: "192.168.3.2/24",
        },
    },
    "ring": {
        f"spark-{'abcd'[i]}": {
            P0: f"10.20.{2 * i}.1/24",
            P0_TWIN: f"10.20.{2 * i + 1}.1/24",
            P1: f"10.20.{(2 * i + 6) % 8}.2/24",
            P1_TWIN: f"10.20.{(2 * i + 7) % 8}.2/24",
        }
        for i in range(4)
    },
}
ENVIRONMENT = {"pair": {}, "triangle": MESH, "ring": MESH | {"NCCL_ALGO": "Ring"}}
HCAS = {
    "pair": ["rocep1s0f0", "roceP2p1s0f0"],
    "triangle": ["rocep1s0f0", "rocep1s0f1"],
    "ring": ["rocep1s0f0", "rocep1s0f1"],
}

Alter = Callable[[SparkTree], None]


def recipe_for(layout: str, **changes: Any) -> Recipe:
    count = len(ADDRESSES[layout])
    values = {
        "schema_version": 1,
        "name": "test",
        "model": {"path": "m", "served_name": "m"},
        "engine": {"runtime": "venv"},
        "parallelism": {"nodes": count, "tp": count},
    }
    return Recipe.model_validate(values | changes)


def topology_for(layout: str, *, fabric: dict[str, Any] | None = None, **links: Any) -> Topology:
    """`fabric` changes that of the second node."""
    nodes = []
    for i, (name, ports) in enumerate(ADDRESSES[layout].items()):
        own = {"address": ports[P0].split("/")[0], "interface": P0, "hcas": HCAS[layout]}
        if layout != "pair":
            own["socket_interface"] = "enP7s7"
        own |= fabric if fabric and i == 1 else {}
        nodes.append(
            {
                "name": name,
                "ssh": {"host": f"192.0.2.{i + 1}", "user": "nvidia"},
                "fabric": own,
                "environment": ENVIRONMENT[layout],
            }
        )
    return Topology.model_validate(
        {"schema_version": 1, "name": "t", "links": {"layout": layout} | links, "nodes": nodes}
    )


def tree_of(layout: str, name: str, root: Path) -> SparkTree:
    names = list(ADDRESSES[layout])
    peers = {other: ADDRESSES[layout][other][P0].split("/")[0] for other in names if other != name}
    return healthy_spark(root, name, names.index(name) + 1, ADDRESSES[layout][name], peers)


def report_of(tree: SparkTree, **request: Any) -> NodeReport:
    """What the real probe reads in the tree."""
    asked = {
        "parts": list(PARTS),
        "peers": {name: [address] for name, address in tree.peers.items()},
        "paths": {
            "engine": "~/.local/share/sparkctl/venv",
            "models": "~/models",
            "engram": "~/engram",
            "state": "~/.local/state/sparkctl",
            "cache": "~/.cache/sparkctl",
        },
        "model_path": "m",
        "engine_python": f"{HOME}/.local/share/sparkctl/venv/bin/python",
        "runtime": "venv",
        "image": None,
        "environment": {},
        "home": HOME,
        "root": str(tree.root),
    }
    answer = doctor(**(asked | request))
    sent, received = answer["started_unix"], answer["ended_unix"]
    return read_report(tree.name, answer, PARTS, sent_unix=sent, received_unix=received)


@functools.cache
def healthy_reports(layout: str) -> dict[str, NodeReport]:
    with tempfile.TemporaryDirectory(prefix="sparkctl-spark-") as root:
        return {name: report_of(tree_of(layout, name, Path(root) / name)) for name in ADDRESSES[layout]}


def case_of(
    layout: str,
    *,
    topology: Topology | None = None,
    recipe: Recipe | None = None,
    reach: ReachReport | None = None,
    **reports: NodeReport,
) -> Case:
    """A healthy cluster but for these reports (`spark_b=...`)."""
    topology, recipe = topology or topology_for(layout), recipe or recipe_for(layout)
    plan = make_plan(recipe, topology, all_facts(topology, recipe), run_id="r1")
    changed = {name.replace("_", "-"): report for name, report in reports.items()}
    return Case(
        plan=plan,
        links=topology.links,
        reports=healthy_reports(layout) | changed,
        reach=reach or ReachReport(),
    )


def ill_case(
    layout: str, root: Path, alter: Alter, *, request: dict[str, Any] | None = None, **changes: Any
) -> Case:
    """spark-b is made ill by `alter` and probed again."""
    tree = tree_of(layout, "spark-b", root)
    alter(tree)
    return case_of(layout, spark_b=report_of(tree, **(request or {})), **changes)


def problems(case: Case) -> list[Finding]:
    return [item for item in examine(case) if item.level in ("warn", "refuse")]


def with_clock(report: NodeReport, skew_s: float) -> NodeReport:
    return replace(report, clock_skew_s=skew_s, clock_error_s=0.01)
