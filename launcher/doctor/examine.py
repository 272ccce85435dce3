"""Pure: every check over a case. A check that had nothing to look at is `not checked`, never ok."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from launcher.doctor import (
    fabric_network,
    fabric_ports,
    fabric_reach,
    gpu,
    host_kernel,
    host_memory,
    software,
    storage,
)
from launcher.doctor.case import Case
from launcher.doctor.check import Check
from launcher.doctor.evidence import is_told
from launcher.doctor.finding import Finding, Problem

GROUPS: dict[str, tuple[Check, ...]] = {
    "fabric": (*fabric_ports.CHECKS, *fabric_network.CHECKS, *fabric_reach.CHECKS),
    "host": (*host_kernel.CHECKS, *host_memory.CHECKS, *gpu.CHECKS),
    "software": software.CHECKS,
    "storage": storage.CHECKS,
}
CHECKS: tuple[Check, ...] = tuple(item for group in GROUPS.values() for item in group)
# What the probe itself tells: a node or tool that did not answer as it should.
ANSWER, TOOL = "node-answer", "probe-tool"
UNSEEN = {
    "reach": "these nodes sent nothing",
    "cables": "nobody heard these nodes on a cable",
    "registration": "memory could not be registered with libibverbs on these nodes",
}
TOOL_FIXES = {
    "ip": "sudo apt install iproute2",
    "ibv_devinfo": "sudo apt install ibverbs-utils",
    "nvidia-smi": "sudo apt install nvidia-utils-580; after a driver update: sudo reboot",
    "docker": "install docker, or use engine.runtime: venv",
}


def examine(case: Case, *, skip_parts: frozenset[str] = frozenset()) -> tuple[Finding, ...]:
    """All findings in the order of the checks, the probe's own first.
    `skip_parts`: not asked for, so left out."""
    found = [*_answers(case), *_tools(case)]
    for item in CHECKS:
        if item.part not in skip_parts and item.applies(case):
            found += _findings(case, item)
    return tuple(found)


def _findings(case: Case, item: Check) -> Iterator[Finding]:
    problems = list(item.find(case))
    for problem in problems:
        yield _finding(item, problem)
    nodes = _unseen(case, item)
    if nodes:
        yield _not_checked(item, nodes, UNSEEN.get(item.part, f"no {item.part} facts of these nodes"))
    named = {*nodes, *(problem.node for problem in problems)}
    silent = [name for name in case.reports if name not in named and not is_told(item.id, case.reports[name])]
    if silent:
        yield _not_checked(item, silent, "what this check looks at could not be read on these nodes")
    if not nodes and not silent and not problems:
        yield Finding(level="ok", check=item.id, node="all", evidence=item.means)


def _not_checked(item: Check, nodes: list[str], evidence: str) -> Finding:
    return Finding(level="not checked", check=item.id, node=", ".join(nodes), evidence=evidence)


def _finding(item: Check, problem: Problem) -> Finding:
    return Finding(
        level=problem.level,
        check=item.id,
        node=problem.node,
        evidence=problem.evidence,
        consequence=problem.why or item.why,
        fix=problem.fix or item.fix,
    )


def _unseen(case: Case, item: Check) -> list[str]:
    """Nodes of which there is nothing to judge: no facts, or nothing that they sent."""
    names = [node.name for node in case.plan.nodes]
    if item.part == "reach":
        tried = {attempt.source for attempt in case.reach.attempts} if case.reach else set()
        return [name for name in names if name not in tried]
    if item.part == "cables":
        heard = {hello.source for hello in case.reach.hellos} if case.reach else set()
        return [name for name in names if name not in heard]
    if item.part == "registration":
        tried = {
            node.name
            for node, facts in case.fabrics()
            if facts.registration and not facts.registration.problem
        }
        return [name for name in names if name not in tried]
    return [name for name in names if getattr(case.reports[name], item.part) is None]


def _answers(case: Case) -> Iterable[Finding]:
    for node in case.plan.nodes:
        for part, reason in case.reports[node.name].problems.items():
            what = "the node" if part == "all" else f"the node's {part} facts"
            yield Finding(
                level="refuse",
                check=ANSWER,
                node=node.name,
                evidence=f"{what} could not be read: {reason}",
                consequence="what was not seen cannot be checked",
                fix="ssh to the node and look: python3, disk, processes; then sparkctl doctor again",
            )


def _tools(case: Case) -> Iterable[Finding]:
    for node in case.plan.nodes:
        for tool, reason in case.reports[node.name].tool_problems.items():
            yield Finding(
                level="warn",
                check=TOOL,
                node=node.name,
                evidence=reason,
                consequence=f"what {tool} tells could not be checked",
                fix=TOOL_FIXES.get(tool, f"run {tool} there by hand"),
            )
