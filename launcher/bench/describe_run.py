"""What the manifest says of a run: recipe, versions, engine arguments, prompts. No name, address or key."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from launcher.bench.corpus import read_corpus
from launcher.bench.endpoint import Endpoint, ServerFacts
from launcher.bench.keep_lock import keep_lock
from launcher.bench.node_samples import MeasuredNodes
from launcher.bench.protocols import lil, sparkdash
from launcher.bench.run_folder import RunFolder
from launcher.bench.settings import BenchSettings
from launcher.plan import LaunchPlan
from launcher.results.manifest import (
    CPU_TOLERANCE,
    PromptSet,
    RunFacts,
    Tolerance,
    Versions,
    resolve,
)
from launcher.results.records import RequestRecord

REVISIONS = {
    "sparkctl-1": "1: own prompts, EOS respected",
    "sparkctl-1-forced": "2: own prompts, forced length, no min_tokens",
    "sparkdash": sparkdash.REVISION,
    "lil": lil.REVISION,
}


def describe_run(
    folder: RunFolder, endpoint: Endpoint, facts: ServerFacts, nodes: MeasuredNodes,
    records: Sequence[RequestRecord], notes: Sequence[str], *, revision: str = "", ended_unix: float,
) -> RunFacts:  # fmt: skip
    """Puts the lock, too, into the run's directory."""
    lock = keep_lock(endpoint.record, folder.path)
    settings = folder.settings
    plan = endpoint.record.plan if endpoint.record else None
    label = settings.protocol_label
    values = plan.values if plan else None
    recipe = resolve(values.name, values.model_dump(mode="json")) if values else None
    corpus = read_corpus()
    said = [*notes, *lock.notes]
    if plan is not None and recipe is None:
        said.append("the run's plan, made by an earlier sparkctl, does not say the whole recipe")
    if any(suite in ("prefill", "mixed", "prefix", "needle") for suite in settings.suites):
        said.append(f"long prompts: passages of this Python's standard library, sha256 {corpus.sha256}")
    return RunFacts(
        run_id=f"bench-{_moment(folder.started_unix, '%Y%m%d-%H%M%S')}",
        protocol=label,
        protocol_revision=revision or REVISIONS[label],
        suites=settings.suites,
        command=tuple(command_of(settings)),
        settings=settings.model_dump(mode="json"),
        started_at=_moment(folder.started_unix),
        ended_at=_moment(ended_unix),
        endpoint="openai" if plan is None else "cluster",
        served_model=endpoint.model,
        recipe=recipe,
        topology=None if plan is None else resolve("nodes of the run", _layout(plan)),
        lock_sha256=lock.sha256,
        versions=Versions(
            sparkctl=version("sparkctl"), sglang=facts.version, python=_python_version(),
            torch=nodes.versions.get("torch"), flashinfer=nodes.versions.get("flashinfer-python"),
            nccl=nodes.versions.get("nvidia-nccl-cu13"),
        ),
        engine_args=facts.engine_args,
        prompts=prompt_sets(records),
        nodes=nodes.nodes,
        notes=tuple(dict.fromkeys(said)),
        tolerance=CPU_TOLERANCE if plan is not None and plan.runtime == "cpu" else Tolerance(),
    )  # fmt: skip


def command_of(settings: BenchSettings) -> list[str]:
    """The command that asks for the same: only what differs from the defaults."""
    default = BenchSettings().model_dump(mode="json")
    words = ["sparkctl", "bench"]
    for name, value in settings.model_dump(mode="json").items():
        if value == default[name] or value is None:
            continue
        option = "--" + _OPTIONS.get(name, name).replace("_", "-")
        if isinstance(value, bool):
            words.append(option)
        else:
            words += [option, ",".join(map(str, value)) if isinstance(value, list) else f"{value}"]
    return words


_OPTIONS = {"suites": "suite", "bandwidth_bytes_per_s": "bandwidth", "forced_length": "force-length"}


def prompt_sets(records: Sequence[RequestRecord]) -> tuple[PromptSet, ...]:
    """Each prompt once, in an order that does not depend on which stream was quicker."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for record in sorted(records, key=lambda item: (item.round, item.concurrency, item.request_id)):
        found.setdefault((record.suite, record.case), {})[record.prompt_sha256] = None
    return tuple(
        PromptSet(suite=suite, case=case, sha256=tuple(hashes))
        for (suite, case), hashes in sorted(found.items())
    )


def _layout(plan: LaunchPlan) -> dict[str, Any]:
    nodes = [
        {"node": f"node-{node.node_rank}", "ranks": list(node.ranks), "connection": node.node.connection}
        for node in plan.nodes
    ]
    return {"runtime": plan.runtime, "nodes": nodes}


def _moment(unix: float, form: str = "%Y-%m-%dT%H:%M:%SZ") -> str:
    return datetime.fromtimestamp(unix, UTC).strftime(form)


def _python_version() -> str:
    import platform

    return platform.python_version()
