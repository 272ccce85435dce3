"""What `up` runs: one LaunchPlan, pure data, the same through JSON and back.

A plan holds no secret: the API key and the run's token are made when it is carried out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from launcher.errors import ConfigError
from launcher.plan_rules import plan_problem
from launcher.recipe import Recipe
from launcher.topology import Node

SCHEMA_VERSION = 1
ROUTER = "router"  # the part of a deployment that is no group, and the name of its node
STRICT = ConfigDict(extra="forbid")  # a key of a plan file that nobody reads is a mistake


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiPlan:
    """The OpenAI API that the head serves.
    `needs_key`: a key is generated and every request must carry it.
    """

    __pydantic_config__ = STRICT

    host: str
    port: int
    served_name: str
    needs_key: bool

    @property
    def probe_host(self) -> str:
        """Where the head itself reaches the API."""
        return (
            "127.0.0.1"
            if self.host in ("0.0.0.0", "localhost")
            else "::1"
            if self.host == "::"
            else self.host
        )

    @property
    def url(self) -> str:
        host = f"[{self.probe_host}]" if ":" in self.probe_host else self.probe_host
        return f"http://{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatPlan:
    """Where the supervisors of the nodes meet. Silence of `timeout_s` ends the run on every node."""

    __pydantic_config__ = STRICT

    address: str
    port: int
    num_workers: int
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    __pydantic_config__ = STRICT

    ready_timeout_s: float
    freeze_timeout_s: float
    stop_timeout_s: float
    drain_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """What runs on one node. argv and environment are complete: the engine sees no other variable but TMPDIR.

    `container` names the docker container when the engine runs in one.
    """

    __pydantic_config__ = STRICT

    node: Node
    node_rank: int
    is_head: bool
    ranks: tuple[int, ...]
    state_path: str
    model_path: str
    argv: tuple[str, ...]
    environment: dict[str, str]
    container: str | None
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.node.name


@dataclass(frozen=True, slots=True, kw_only=True)
class LockPlan:
    """The recipe's lock: how recipe and launcher differ from it, and what every node must have.

    `file`: absolute, as `bench` keeps a copy of it. `versions`: package -> version, `content`: package ->
    hash over its sources, `files`: of the model, with their sha256.
    """

    __pydantic_config__ = STRICT

    file: str
    sha256: str
    differences: tuple[str, ...]
    versions: dict[str, str]
    content: dict[str, str]
    files: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """`not_supported`: settings of the recipe that this version cannot carry out; `up` refuses them.

    `profile`: of the recipe. `deployment`: the id that groups and their router share; each of them is a run,
    and `part` says which: "group 1", "group 2" and so on, or "router".
    `values`: the whole recipe, so that a result can say what ran after its file has changed; without --port.
    """

    __pydantic_config__ = STRICT

    schema_version: int
    run_id: str
    recipe: str
    topology: str
    runtime: str
    sglang_version: str
    not_supported: tuple[str, ...]
    rendezvous: str
    api: ApiPlan
    heartbeat: HeartbeatPlan | None
    limits: RunLimits
    nodes: tuple[NodePlan, ...]
    lock: LockPlan | None = None
    profile: str | None = None
    deployment: str | None = None
    part: str | None = None
    values: Recipe | None = None

    @property
    def head(self) -> NodePlan:
        return self.nodes[0]

    @property
    def is_router(self) -> bool:
        """No engine runs here: no rank, no model, no report."""
        return self.part == ROUTER

    def node(self, name: str) -> NodePlan:
        return next(node for node in self.nodes if node.name == name)


_ADAPTER = TypeAdapter(LaunchPlan)


def plan_to_json(plan: LaunchPlan) -> str:
    return json.dumps(plan_as_dict(plan), indent=2, sort_keys=True) + "\n"


def plan_as_dict(plan: LaunchPlan) -> dict[str, Any]:
    value: dict[str, Any] = _ADAPTER.dump_python(plan, mode="json")
    for name in ("lock", "profile", "deployment", "part", "values"):
        if value[name] is None:
            del value[name]  # most recipes have none
    return value


def plan_from_json(text: str, *, source: str = "the plan") -> LaunchPlan:
    """Raises ConfigError when `text` is no plan of this version."""
    try:
        plan = _ADAPTER.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "top level"
        raise ConfigError(
            f"{source} is no launch plan: {where}: {first['msg']}",
            hint="write one with: sparkctl plan --output plan.json",
        ) from error
    if plan.schema_version != SCHEMA_VERSION:
        raise ConfigError(
            f"{source} must have schema_version {SCHEMA_VERSION}, got {plan.schema_version}",
            hint="write it again with: sparkctl plan --output plan.json",
        )
    problem = plan_problem(plan)
    if problem:
        raise ConfigError(
            f"{source} is no launch plan: {problem}",
            hint="correct it, or write it again with: sparkctl plan --output plan.json",
        )
    return plan
