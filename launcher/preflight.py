"""Pure: what would make this launch fail, found before anything is started.

Each finding names the node, what was seen, and the next command. Kept to what a launch itself needs.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from launcher.doctor.finding import Finding
from launcher.make_plan import num_ranks, run_ports
from launcher.node_facts import NodeFacts
from launcher.plan import LaunchPlan, NodePlan
from launcher.plan_groups import ROUTER_VERSION, whole_of
from launcher.split_rows import SAID, UNDO

LOCK_CHECK = "recipe-lock"
LOCK_HINT = (
    "bring back what was locked, pin what is there now (sparkctl recipe lock NAME),"
    " or start as it is: sparkctl up --unlocked"
)


def find_problems(plan: LaunchPlan, facts: Mapping[str, NodeFacts]) -> tuple[Finding, ...]:
    """All findings of all nodes, in rank order."""
    found = [
        _refuse(
            "not-supported",
            plan.head,
            f"{item} must be left out: this version of sparkctl cannot do it yet",
            "change the recipe (sparkctl recipe show), or take another one (sparkctl recipe list)",
        )
        for item in plan.not_supported
    ]
    found += _evidence(plan)
    found += _widths(plan)
    found += _split_rows(plan)
    found += [
        _refuse(LOCK_CHECK, plan.head, f"{item} ({lock.file})", LOCK_HINT)
        for lock in ((plan.lock,) if plan.lock else ())
        for item in lock.differences
    ]
    for node in plan.nodes:
        own = facts[node.name]
        found += _earlier_runs(node, own)
        found += _state_directory(node, own)
        found += _engine(plan, node, own)
        found += _model(node, own)
        found += _packed(plan, node, own)
        found += _ports(plan, node, own)
        found += _fabric(node, own)
    return (*found, *_same_versions(plan, facts))


def _refuse(check: str, node: NodePlan, evidence: str, fix: str) -> Finding:
    return Finding(level="refuse", check=check, node=node.name, evidence=evidence, fix=fix)


def _evidence(plan: LaunchPlan) -> Iterator[Finding]:
    """A recipe for GPUs that nobody ran: what it needs proves itself at boot, and may be refused there."""
    if plan.values is None or plan.runtime == "cpu" or plan.values.evidence.status != "not_run":
        return
    notes = plan.values.evidence.notes or "not run"
    yield Finding(
        level="warn",
        check="evidence",
        node=plan.head.name,
        evidence=f"nobody has reported a run of recipe {plan.recipe} on such machines ({notes}); the engine "
        "checks the extension's hooks and kernels at boot, and ends by name where one fails",
        fix="sparkctl logs --follow shows it; when it serves: sparkctl bench, then sparkctl results publish",
    )


def _widths(plan: LaunchPlan) -> Iterator[Finding]:
    """Boot proves that the hooks are in place and the ranks' cost tables equal,
    not that a GPU computes the same text with them."""
    if plan.runtime == "cpu" or "SPARKCTL_SPEC" not in plan.head.environment:
        return
    yield Finding(
        level="warn",
        check="draft-widths",
        node=plan.head.name,
        evidence="extensions.dspark.width: auto has run on the CPU engine and on an H200, slower there than fixed"
        " blocks (not run on a GB10); until sparkctl tune spec has measured a cost table, requests verify whole"
        " blocks as in SGLang",
        fix='compare greedy replies with custom_params {"spec": "off"} and without; width: block undoes it',
    )


def _split_rows(plan: LaunchPlan) -> Iterator[Finding]:
    """Boot proves that the hook is in place; equality and speed were measured on other machines."""
    environment = plan.head.environment
    if plan.runtime == "cpu" or "SPARKCTL_SEQUENCE_PARALLEL" not in environment:
        return
    yield Finding(level="warn", check="split-rows", node=plan.head.name, evidence=SAID, fix=UNDO)


def _earlier_runs(node: NodePlan, facts: NodeFacts) -> Iterator[Finding]:
    for run in facts.live_runs:
        yield _refuse(
            "earlier-run",
            node,
            f"an earlier run is still alive: {run.run_id} ({run.status}) since {run.started}",
            f"sparkctl down --run {whole_of(run.run_id)}, or sparkctl up --replace",
        )


def _state_directory(node: NodePlan, facts: NodeFacts) -> Iterator[Finding]:
    if facts.state_problem:
        yield _refuse(
            "state-directory",
            node,
            f"paths.state must be a place for runs: {facts.state_problem}",
            "give the node another paths.state in the topology",
        )


def _engine(plan: LaunchPlan, node: NodePlan, facts: NodeFacts) -> Iterator[Finding]:
    engine, wanted = facts.engine, plan.sglang_version
    if engine.problem:
        yield _refuse(
            "engine",
            node,
            f"the engine must be installed: {engine.problem}",
            f"sparkctl install puts sglang {wanted} and sparkctl on every node (make up: on this machine);"
            " or set paths.engine of this node to a venv that has both",
        )
    elif plan.runtime != "docker" and engine.sglang != wanted:
        yield _refuse(
            "engine-version",
            node,
            f"sglang must be {wanted}, got {engine.sglang} ({engine.python})",
            f"sparkctl install, or set engine.sglang_version: {engine.sglang} in the recipe",
        )
    elif plan.runtime != "docker" and engine.sparkctl is None:
        yield _refuse(
            "engine-plugin",
            node,
            f"the engine's environment must have sparkctl's plugin, got none ({engine.python})",
            "sparkctl install, or there: pip install --no-deps sparkctl (docs/install.md)",
        )
    elif plan.is_router and engine.sglang_router != ROUTER_VERSION:
        where = f"on {node.node.ssh.host}" if node.node.connection == "ssh" else "on this machine"
        yield _refuse(
            "router",
            node,
            f"sglang-router must be {ROUTER_VERSION}, got {engine.sglang_router or 'none'} ({engine.python})",
            f"{where}: {engine.python} -m pip install --no-deps sglang-router=={ROUTER_VERSION}",
        )


def _model(node: NodePlan, facts: NodeFacts) -> Iterator[Finding]:
    if facts.model and facts.model.problem:
        yield _refuse(
            "model",
            node,
            f"model.path must be a complete checkpoint on this node: {facts.model.path}:"
            f" {facts.model.problem}",
            "sparkctl weights fetch, then sparkctl weights push; or set paths.models of this node in the"
            " topology",
        )


def _packed(plan: LaunchPlan, node: NodePlan, facts: NodeFacts) -> Iterator[Finding]:
    packed = facts.packed
    if packed and packed.problem:
        # Stand-ins for nodes share one folder: one command packs for all of them.
        shared = node.node.connection == "local" and len(plan.nodes) > 1
        # `doctor` looks at several groups in one plan; a rank's tables are those of its group.
        tp = _tp_size(plan, node)
        which = "--ranks all" if shared else "--ranks " + ",".join(str(rank % tp) for rank in node.ranks)
        command = (
            f"sparkctl engram pack --checkpoint {shlex.quote(node.model_path)}"
            f" --out {shlex.quote(packed.path)} --tp {tp} {which}"
        )
        yield _refuse(
            "engram-tables",
            node,
            "extensions.engram.packed_path must hold the packed Engram tables of this node's ranks: "
            f"{packed.path}: {packed.problem}",
            f"{'' if shared else f'on {node.name}: '}{command}",
        )


def _tp_size(plan: LaunchPlan, node: NodePlan) -> int:
    words = node.argv
    return int(words[words.index("--tp-size") + 1]) if "--tp-size" in words else num_ranks(plan)


def _ports(plan: LaunchPlan, node: NodePlan, facts: NodeFacts) -> Iterator[Finding]:
    for host, port, reason in facts.busy_ports:
        if port in run_ports(plan.run_id):
            message = f"the run's own port {port} must be free, it is {reason}"
            hint = "run the command again: each run takes other ports"
        elif reason != "in use":
            message = f"the API must be able to listen on {host}:{port}: {reason}"
            hint = "set server.host in the recipe to an address of the head, or to 127.0.0.1"
        else:
            what = "API port" if node.is_head else "the worker's health port"
            message = f"{what} {host}:{port} must be free, it is in use"
            hint = f"see who holds it: ss -ltnp 'sport = :{port}'; or choose another: --port"
        yield _refuse("port", node, message, hint)


def _fabric(node: NodePlan, facts: NodeFacts) -> Iterator[Finding]:
    fabric = node.node.fabric
    names = ", ".join(
        f"{item.name} {'/'.join(item.addresses) or 'without address'}" for item in facts.interfaces
    )
    interface = facts.interface(fabric.interface)
    if interface is None:
        yield _refuse(
            "interface",
            node,
            f"fabric.interface must be one of the node's interfaces ({names}), got {fabric.interface!r}",
            "correct it in the topology: sparkctl topology show",
        )
    elif ":" not in fabric.address and not fabric.is_loopback and fabric.address not in interface.addresses:
        yield _refuse(
            "fabric-address",
            node,
            f"fabric.address must be an address of {fabric.interface}, got {fabric.address} ({names})",
            "correct it in the topology, or give the interface its address (netplan)",
        )


def _same_versions(plan: LaunchPlan, facts: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Ranks that run different code give different answers, or hang."""
    for name in ("sglang", "sparkctl", "torch"):
        versions = {node.name: getattr(facts[node.name].engine, name) for node in plan.nodes}
        if len(set(versions.values())) > 1:
            listed = ", ".join(f"{node} {version}" for node, version in versions.items())
            message = f"{name} must be the same on all nodes, got {listed}"
            yield _refuse(
                "same-versions",
                plan.nodes[-1],
                message,
                "install the same versions everywhere (docs/install.md)",
            )
