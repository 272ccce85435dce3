"""Ask all nodes at once for what the doctor looks at. Read-only; a node that fails is told, not raised."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from launcher.call_node import ask_node
from launcher.doctor.engine_python import image_of
from launcher.doctor.node_report import NodeReport, failed_report, read_report
from launcher.plan import LaunchPlan
from launcher.recipe import Recipe
from launcher.remote import Remote
from launcher.run_on_all import run_on_all
from launcher.topology import Node

ANSWER_TIMEOUT_S = 20.0
# Where a loader looks before it looks where the engine was linked to.
LOADER_NAMES = ("LD_LIBRARY_PATH", "LD_PRELOAD")

Parts = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeQuestion:
    """What is asked of one node: its own paths, and the addresses of the others."""

    node: Node
    model_path: str
    runtime: str
    image: str | None
    environment: dict[str, str]


def questions_for_recipe(recipe: Recipe, nodes: tuple[Node, ...]) -> tuple[NodeQuestion, ...]:
    return tuple(
        NodeQuestion(
            node=node,
            model_path=recipe.model.path,
            runtime=recipe.engine.runtime,
            image=recipe.engine.image,
            environment=recipe.environment | node.environment,
        )
        for node in nodes
    )


def questions_for_plan(plan: LaunchPlan) -> tuple[NodeQuestion, ...]:
    return tuple(
        NodeQuestion(
            node=node.node,
            model_path=node.model_path,
            runtime=plan.runtime,
            image=image_of(node),
            environment=node.environment,
        )
        for node in plan.nodes
    )


def parts_for(runtime: str, nodes: tuple[Node, ...]) -> Parts:
    """What can differ on these nodes:
    one machine has one fabric and one engine, and no GPU is used without one."""
    parts = ["host", "storage"]
    if any(node.connection != "local" for node in nodes):
        parts += ["fabric", "software"]
    if runtime != "cpu":
        parts += [part for part in ("fabric", "software", "gpu") if part not in parts]
    return tuple(parts)


def gather_reports(
    remotes: Mapping[str, Remote],
    questions: tuple[NodeQuestion, ...],
    parts: Parts,
    clock: Callable[[], float],
) -> dict[str, NodeReport]:
    """`clock`: seconds since 1970 on this machine, to compare the nodes' clocks with."""
    by_name = {item.node.name: item for item in questions}

    def ask(remote: Remote) -> NodeReport:
        question = by_name[remote.node]
        sent_unix = clock()
        answer = ask_node(
            remote,
            "doctor",
            timeout_s=ANSWER_TIMEOUT_S,
            parts=parts,
            peers={
                item.node.name: [item.node.fabric.address]
                for item in questions
                if item.node.name != remote.node
            },
            paths=question.node.paths.model_dump(),
            model_path=question.model_path,
            engine_python=posixpath.join(question.node.paths.engine, "bin/python"),
            runtime=question.runtime,
            image=question.image,
            environment={
                name: question.environment[name] for name in LOADER_NAMES if name in question.environment
            },
        )
        return read_report(remote.node, answer, parts, sent_unix=sent_unix, received_unix=clock())

    results = run_on_all([remotes[item.node.name] for item in questions], ask)
    return {
        name: result.value if result.value is not None else failed_report(name, _reason(result.error))
        for name, result in results.items()
    }


def _reason(error: Exception | None) -> str:
    return getattr(error, "message", str(error))
