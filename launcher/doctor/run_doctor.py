"""The doctor's job: ask, plan, send, judge. Starts nothing but the collective probe, and changes nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from launcher.choose_inputs import Inputs
from launcher.doctor.case import Case, is_spread
from launcher.doctor.check_names import LAUNCH_CHECKS
from launcher.doctor.collective_result import CHECK as COLLECTIVE
from launcher.doctor.collective_result import CollectiveResult, collective_findings
from launcher.doctor.examine import examine
from launcher.doctor.finding import Finding, merge_not_checked
from launcher.doctor.gather_reports import gather_reports, parts_for, questions_for_plan, questions_for_recipe
from launcher.doctor.memory_fit import memory_fit
from launcher.doctor.node_report import NodeReport
from launcher.doctor.plan_anyway import plan_anyway
from launcher.doctor.send_collective import send_collective
from launcher.doctor.send_reach import send_reach
from launcher.gather_facts import gather_facts, probes_for_recipe
from launcher.launch_cluster import new_run_id
from launcher.node_facts import NodeFacts
from launcher.plan import LaunchPlan
from launcher.preflight import find_problems
from launcher.remote import Remote
from launcher.run_on_all import Result

PARTS = ("host", "fabric", "gpu", "storage", "software")
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorResult:
    case: Case
    findings: tuple[Finding, ...]
    collective: CollectiveResult | None
    seconds: dict[str, float] = field(default_factory=dict)

    def refusals(self, skip: tuple[str, ...]) -> tuple[Finding, ...]:
        return tuple(item for item in self.findings if item.level == "refuse" and item.check not in skip)


def run_doctor(
    inputs: Inputs,
    remotes: Mapping[str, Remote],
    *,
    collective: bool,
    skip: tuple[str, ...] = (),
    tell: Tell = lambda text: None,
) -> DoctorResult:
    """Never raises for what a node does or says: that is a finding."""
    seconds: dict[str, float] = {}
    started_s = time.monotonic()
    recipe, topology = inputs.recipe, inputs.topology
    parts = parts_for(recipe.engine.runtime, topology.nodes)
    run_id = new_run_id()
    facts: dict[str, Result[NodeFacts]] = {}
    asking = threading.Thread(
        target=lambda: facts.update(gather_facts(remotes, probes_for_recipe(recipe, topology, run_id=run_id)))
    )
    asking.start()
    reports = gather_reports(remotes, questions_for_recipe(recipe, topology.nodes), parts, time.time)
    asking.join()
    plan, known = plan_anyway(recipe, topology, facts, run_id=run_id)
    seconds["facts_s"] = round(time.monotonic() - started_s, 3)
    tell(f"{len(reports)} node(s) asked ({seconds['facts_s']:.1f} s)")
    case = with_reach(Case(plan=plan, links=topology.links, reports=_told(reports, facts)), remotes)
    if case.reach:
        seconds["reach_s"] = case.reach.seconds
        tell(f"{len(case.reach.attempts)} ways between them tried ({case.reach.seconds:.1f} s)")
    found = [
        *_launch_findings(plan, known),
        *examine(case, skip_parts=frozenset(PARTS) - frozenset(parts)),
        *memory_fit(case, recipe, known),
    ]
    seconds["checks_s"] = round(time.monotonic() - started_s, 3)
    probed, more = _collective(plan, found, remotes, wanted=collective, skip=skip, tell=tell)
    if probed:
        seconds["collective_s"] = probed.seconds
    return DoctorResult(case=case, findings=(*found, *more), collective=probed, seconds=seconds)


def with_reach(case: Case, remotes: Mapping[str, Remote]) -> Case:
    """The same case, with what came through between the nodes, where there is a network between them."""
    return replace(case, reach=send_reach(case, remotes)) if case.is_spread else case


def quick_findings(
    plan: LaunchPlan,
    inputs: Inputs | None,
    facts: Mapping[str, NodeFacts],
    remotes: Mapping[str, Remote],
    *,
    clock: Callable[[], float],
) -> tuple[Finding, ...]:
    """What `up` asks before it starts: everything but the collective probe. `inputs` is None for a plan file.

    What is wrong, and what could not be checked.
    """
    nodes = tuple(node.node for node in plan.nodes)
    parts = parts_for(plan.runtime, nodes)
    reports = gather_reports(remotes, questions_for_plan(plan), parts, clock)
    links = inputs.topology.links if inputs else None
    case = with_reach(Case(plan=plan, links=links, reports=reports), remotes)
    found = examine(case, skip_parts=frozenset(PARTS) - frozenset(parts))
    memory = memory_fit(case, inputs.recipe if inputs else None, facts)
    return merge_not_checked(item for item in (*found, *memory) if item.level != "ok")


def collective_before_launch(
    plan: LaunchPlan, remotes: Mapping[str, Remote], *, skip: tuple[str, ...], tell: Tell
) -> tuple[Finding, ...]:
    """The collective probe as the last thing that `up` asks, when nothing else refuses.

    Not between stand-ins for nodes on one machine: no link is between them, and they share its cores.
    """
    if len(plan.nodes) < 2:
        return ()
    if COLLECTIVE in skip:
        tell(f"no all-reduces between the nodes: --skip {COLLECTIVE}")
        return ()
    if not is_spread(plan):
        reason = "all nodes are this machine: there is no link to try"
        return (Finding(level="not checked", check=COLLECTIVE, node="all", evidence=reason),)
    result = send_collective(plan, remotes, tell=tell)
    found = tuple(collective_findings(result))
    for item in found:
        if item.level == "ok":
            tell(f"{item.evidence} ({result.seconds:.1f} s)")
    return found


def _told(reports: Mapping[str, NodeReport], facts: Mapping[str, Result[NodeFacts]]) -> dict[str, NodeReport]:
    """A node whose plain facts failed is named once, also when the rest of it answered."""
    found = {}
    for name, report in reports.items():
        error = facts[name].error
        if error is not None and not report.problems:
            report = replace(report, problems={"all": error.message})
        found[name] = report
    return found


def _launch_findings(plan: LaunchPlan, known: Mapping[str, NodeFacts]) -> list[Finding]:
    """What `up` itself would refuse, of the nodes that answered."""
    names = {node.name for node in plan.nodes if node.name in known}
    seen = replace(plan, nodes=tuple(node for node in plan.nodes if node.name in names))
    problems = find_problems(seen, known) if names else ()
    return [replace(item, consequence=LAUNCH_CHECKS[item.check][1]) for item in problems]


def _collective(
    plan: LaunchPlan,
    found: list[Finding],
    remotes: Mapping[str, Remote],
    *,
    wanted: bool,
    skip: tuple[str, ...],
    tell: Tell,
) -> tuple[CollectiveResult | None, tuple[Finding, ...]]:
    if not wanted or len(plan.nodes) < 2 or COLLECTIVE in skip:
        return None, ()
    refused = sorted({item.check for item in found if item.level == "refuse" and item.check not in skip})
    if refused:
        reason = f"not run, because these refuse: {', '.join(refused)}"
        return None, (Finding(level="not checked", check=COLLECTIVE, node="all", evidence=reason),)
    result = send_collective(plan, remotes, tell=tell)
    return result, tuple(collective_findings(result))
