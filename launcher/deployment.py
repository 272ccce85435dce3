"""What `up` starts together: one run, or groups of nodes and the router before them, each a run of its own.

A run ends as a whole; groups do not end with each other, so that one serves on where another died.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from launcher.errors import ConfigError
from launcher.plan import SCHEMA_VERSION, LaunchPlan, plan_as_dict, plan_from_json, plan_to_json
from launcher.topology import Node

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """`plans`: of the groups, in order, then the router's; or the only one."""

    plans: tuple[LaunchPlan, ...]

    @property
    def id(self) -> str:
        return self.plans[0].deployment or self.plans[0].run_id

    @property
    def groups(self) -> tuple[LaunchPlan, ...]:
        return tuple(plan for plan in self.plans if not plan.is_router)

    @property
    def router(self) -> LaunchPlan | None:
        return next((plan for plan in self.plans if plan.is_router), None)

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(node.node for plan in self.plans for node in plan.nodes)


def of_plan(plan: LaunchPlan, by_node: Mapping[str, Value]) -> dict[str, Value]:
    """What belongs to the nodes of one plan."""
    return {node.name: by_node[node.name] for node in plan.nodes if node.name in by_node}


def deployment_to_json(deployment: Deployment) -> str:
    """A plan alone is written as itself."""
    if len(deployment.plans) == 1:
        return plan_to_json(deployment.plans[0])
    value = {
        "schema_version": SCHEMA_VERSION,
        "deployment": deployment.id,
        "plans": [plan_as_dict(plan) for plan in deployment.plans],
    }
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def deployment_from_json(text: str, *, source: str = "the plan") -> Deployment:
    """Raises ConfigError when `text` is no plan of this version, or its parts do not belong together."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or "plans" not in value:
        return Deployment(plans=(plan_from_json(text, source=source),))
    parts = value["plans"] if isinstance(value["plans"], list) else []
    plans = tuple(
        plan_from_json(json.dumps(part), source=f"{source}, plans.{index}")
        for index, part in enumerate(parts)
    )
    problem = _problem(plans, value.get("deployment"))
    if problem:
        raise ConfigError(
            f"{source} is no launch plan: {problem}",
            hint="correct it, or write it again with: sparkctl plan --output plan.json",
        )
    return Deployment(plans=plans)


def _problem(plans: tuple[LaunchPlan, ...], deployment: object) -> str | None:
    wanted = [*(f"group {number}" for number in range(1, len(plans))), "router"]
    parts = [plan.part for plan in plans]
    if len(plans) < 3 or parts != wanted:
        return f"plans must be those of two groups or more, then of the router, got {parts}"
    if {plan.deployment for plan in plans} != {deployment}:
        return f"every plan must be of deployment {deployment!r}"
    names = [node.name for plan in plans for node in plan.nodes]
    if len(set(names)) < len(names):
        return f"node names must differ, got {', '.join(names)}"
    if len({plan.run_id for plan in plans}) < len(plans):
        return "run ids must differ"
    return None
