"""Measure the cost table of a run's speculation, and bring it to every node.

The engine's own Python measures on the head (sgl_ext/speculation/tune.py), as the launcher knows no engine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from launcher.call_node import NodeStream, ask_node
from launcher.errors import NodeFailed, PreflightRefused
from launcher.plan import LaunchPlan, NodePlan
from launcher.remote import Remote
from launcher.run_on_all import run_on_all

TABLE_VARIABLE = "SPARKCTL_SPEC_TABLE"
MODULE = "sgl_ext.speculation.tune"
PUT_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """max_batch: None measures up to what the engine runs at once. timeout_s: for all steps together.
    allow_busy: a machine that was busy meanwhile is not refused."""

    context_tokens: int
    max_batch: int | None
    rounds: int
    timeout_s: float
    allow_busy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedTable:
    """text: the file. path: on each node."""

    hash: str
    batches: tuple[int, ...]
    verify_ns: tuple[tuple[int, ...], ...]
    draft_ns: tuple[int, ...]
    path: Mapping[str, str]


def tune_spec(
    plan: LaunchPlan,
    remotes: Mapping[str, Remote],
    key: str | None,
    options: TuneOptions,
    report: Callable[[str], None],
) -> TunedTable:
    """Blocks while the engine is measured. Raises PreflightRefused where the run decides no widths or the
    measurement failed, and the error of the first node that could not keep the table."""
    paths = {node.name: table_path(node) for node in plan.nodes}
    text = _measure(plan, remotes[plan.head.name], key, options, report)
    table = json.loads(text)

    def put(remote: Remote) -> str:
        path = paths[remote.node]
        return str(ask_node(remote, "put_table", timeout_s=PUT_TIMEOUT_S, path=path, text=text)["hash"])

    kept = {name: result.unwrap() for name, result in run_on_all(list(remotes.values()), put).items()}
    for name, seen in kept.items():
        if seen != table["hash"]:
            raise NodeFailed(
                f"the table must be kept as it was sent, {table['hash']}, got {seen}",
                hint="sparkctl tune spec again",
                node=name,
            )
    return TunedTable(
        hash=table["hash"],
        batches=tuple(table["batches"]),
        verify_ns=tuple(tuple(row) for row in table["verify_ns"]),
        draft_ns=tuple(table["draft_ns"]),
        path=paths,
    )


def table_path(node: NodePlan) -> str:
    """Where the node's engine reads its table. Raises PreflightRefused where it reads none."""
    path = node.environment.get(TABLE_VARIABLE)
    if path is None:
        raise PreflightRefused(
            "the run must decide widths to be tuned, got extensions.dspark.width: block",
            hint="set extensions.dspark.width to auto in the recipe and start again",
            node=node.name,
        )
    if node.container is not None:
        raise PreflightRefused(
            f"the engine must run without a container to be tuned, got {node.container}",
            hint="start with engine.runtime: venv",
            node=node.name,
        )
    return path


def tune_argv(plan: LaunchPlan, options: TuneOptions) -> list[str]:
    words = [plan.head.argv[0], "-m", MODULE, "--url", plan.api.url]
    words += ["--context-tokens", str(options.context_tokens), "--rounds", str(options.rounds)]
    if options.allow_busy:
        words.append("--allow-busy")
    return words if options.max_batch is None else [*words, "--max-batch", str(options.max_batch)]


def _measure(
    plan: LaunchPlan, head: Remote, key: str | None, options: TuneOptions, report: Callable[[str], None]
) -> str:
    with NodeStream(
        head,
        "measure_table",
        state_path=plan.head.state_path,
        run_id=plan.run_id,
        argv=tune_argv(plan, options),
        environment=plan.head.environment,
        key=key,
        timeout_s=options.timeout_s,
    ) as stream:
        while True:
            try:
                answer = stream.read(options.timeout_s)
            except EOFError:
                answer = None
            if answer is None:
                raise NodeFailed(
                    "the measurement must end with a table, got nothing more from the node",
                    hint="sparkctl status",
                    node=head.node,
                )
            if "table" in answer:
                return str(answer["table"])
            report(str(answer["progress"]))
