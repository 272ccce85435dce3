"""Moments as the collector would hand them over: real plans and records, nodes' answers in their real shape,
figures from a recorded scrape of SGLang 0.5.23 (recorded/*.metrics.txt).
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from launcher.call_node import Answer
from launcher.dashboard.engine_metrics import read_sample
from launcher.dashboard.history import History
from launcher.dashboard.recent_errors import ErrorLine, ErrorReader
from launcher.dashboard.run_facts import Moment, NodeNow, Proof, RunNow
from launcher.engine_phase import Phase
from launcher.errors import NodeUnreachable
from launcher.plan import NodePlan
from launcher.run_on_all import Result
from launcher.run_record import RunRecord
from tests.launcher.local_plan import local_plan

NOW_S = 5000.0
NOW_UNIX = 1_796_000_000.0
HEAD = (Path(__file__).parent / "recorded/head.metrics.txt").read_text()
WORKER = (Path(__file__).parent / "recorded/worker.metrics.txt").read_text()
HOSTILE = (
    "[2026-09-11 23:34:13 TP0] RuntimeError: CUDA out of memory <script>document.title='owned'</script>"
    " <img src=x onerror=\"document.title='owned'\"> api_key='sk-thisisasecretvalue123'"
)


def record(run_id: str = "20260911-233000-00aa", *, status: str = "ready", nodes: int = 3,
           age_s: float = 7500.0, engine_s: float | None = 180.0, note: str = "") -> RunRecord:  # fmt: skip
    timings = {} if engine_s is None else {"start_s": 1.0, "engine_s": engine_s}
    return RunRecord(
        plan=local_plan(nodes, run_id),
        status=status,
        started_unix=NOW_UNIX - age_s,
        timings=timings,
        note=note,
    )


def answer(node: NodePlan, status: str = "running", **changes: Any) -> dict[str, Any]:
    rank = node.ranks[0]
    title = f"sglang::scheduler_TP{rank}"
    ended = status == "ended"
    pids = [] if ended else [(100 + rank, "S", title), (200 + rank, "S", "python -m sglang.launch_server")]
    run: dict[str, Any] = {
        "status": status,
        "started": "2026-09-11T23:30:01+0000",
        "state": {
            "phase": "running",
            "ranks": {str(100 + rank): title},
            "end": None,
            "supervisor_pid": 90 + rank,
        },
        "processes": [{"pid": pid, "state": state, "title": title} for pid, state, title in pids],
    }
    return run | changes


def node_now(node: NodePlan, run: dict[str, Any] | None = None, **changes: Any) -> NodeNow:
    heard: Result[Answer | None] = Result(value=run or answer(node))
    return replace(NodeNow(plan=node, heard=heard, heard_s=NOW_S - 1.0), **changes)


@cache
def history(*, engram: bool = True, ago_s: float = 1.0) -> History:
    """Five minutes of a cluster that is asked more and more; with drafting and Engram as a GPU has them."""
    made = History()
    for step in range(75):
        at_s = NOW_S - ago_s - 4.0 * (74 - step)
        made.add(read_sample(at_s, metrics_text(step, engram=engram), [WORKER]))
    return made


def metrics_text(step: int, *, engram: bool = True) -> str:
    wave = (step // 12) % 5
    text = _set(HEAD, r'sglang:realtime_tokens_total\{[^}]*mode="decode"[^}]*\}', 100 + 110 * step + 8 * wave)
    text = _set(text, r"sglang:token_usage\{[^}]*\}", 0.12 + 0.002 * step + 0.01 * wave)
    text = _set(text, r"sglang:num_used_tokens\{[^}]*\}", 983 + 16 * step)
    text = _set(text, r"sglang:num_queue_reqs\{[^}]*\}", max(0, wave - 2))
    text = _set(text, r"sglang:num_running_reqs\{[^}]*\}", 4 + wave)
    if not engram:
        return text
    text = _set(text, r"sglang:spec_accept_length\{[^}]*\}", 2.4 + 0.1 * wave)
    rows, hits = 9000.0 * step, 8100.0 * step + 100.0 * wave
    lines = [
        f'sparkctl_engram_rows_total{{tp_rank="0"}} {rows}',
        f'sparkctl_engram_hit_rows_total{{tp_rank="0"}} {hits}',
        "sparkctl_spec_break_even_recent 1.31",
        "sparkctl_spec_below_break_even 0.0",
        f"sparkctl_spec_requests_off {wave}",
    ]
    for bound, share in (("10", 0.90), ("50", 0.94), ("100", 0.97), ("4000", 1.0), ("inf", 1.0)):
        labels = f'tp_rank="0",layer="2",le="{bound}"'
        lines.append(f"sparkctl_engram_exposed_wait_steps_total{{{labels}}} {1000.0 * step * share}")
    return text + "\n".join(lines) + "\n"


def _set(text: str, pattern: str, value: float) -> str:
    changed, count = re.subn(rf"^({pattern}) \S+$", rf"\g<1> {value}", text, flags=re.MULTILINE)
    assert count == 1, pattern
    return changed


def serving(run_id: str = "20260911-233000-00aa", *, nodes: int = 3, engram: bool = True) -> RunNow:
    made = record(run_id, nodes=nodes)
    return RunNow(
        record=made,
        nodes=tuple(node_now(node) for node in made.plan.nodes),
        proof=Proof(token_s=NOW_S - 2.0, seconds=0.041),
        history=history(engram=engram),
    )


def with_node(run: RunNow, idx: int, **changes: Any) -> RunNow:
    nodes = list(run.nodes)
    nodes[idx] = replace(nodes[idx], **changes)
    return replace(run, nodes=tuple(nodes))


def broken(kind: str) -> RunNow:
    """The third node is unreachable, frozen, dead or orphaned, and the head generates no token any more."""
    run = replace(serving(), proof=Proof(token_s=NOW_S - 90.0, failed_s=NOW_S - 3.0, failure="timed out"))
    node = run.nodes[2].plan
    if kind == "unreachable":
        error = NodeUnreachable("no answer on port 22 within 10 s", node=node.name)
        return with_node(run, 2, heard=Result(error=error))
    stopped = [{"pid": 102, "state": "T", "title": "sglang::scheduler_TP2"}]
    end = {"kind": "rank", "what": "rank 2 (sglang::scheduler_TP2, pid 102) ended", "signal": 9}
    told = {
        "frozen": answer(node, processes=stopped),
        "dead": answer(node, "ended", processes=[], state={"phase": "ended", "end": end}),
        "orphaned": answer(node, "orphaned"),
    }[kind]
    return with_node(run, 2, heard=Result(value=told), errors=hostile_errors(node.name))


def hostile_errors(node: str) -> tuple[ErrorLine, ...]:
    reader = ErrorReader(node, 2, lambda text: text)
    reader.feed(HOSTILE)
    return reader.newest


def loading() -> RunNow:
    made = record("20260911-235000-00bb", status="starting", age_s=100.0, engine_s=None)
    phases = (Phase.LOADING, Phase.LOADING, Phase.RENDEZVOUS)
    texts = ("loading weights 42 % (20/48)", "loading weights", "meeting the other ranks")
    nodes = tuple(
        node_now(node, phase=phase, phase_text=text)
        for node, phase, text in zip(made.plan.nodes, phases, texts, strict=True)
    )
    return RunNow(record=made, nodes=nodes, metrics_problem="ConnectionRefusedError: [Errno 111]")


def moment(*runs: RunNow, ended: tuple[RunRecord, ...] = ()) -> Moment:
    return Moment(now_s=NOW_S, now_unix=NOW_UNIX, open_runs=runs, ended=ended)


def earlier_runs() -> tuple[RunRecord, ...]:
    failed = "node-1: rank 1 failed: its scheduler ended (killed by SIGKILL)"
    return (
        record("20260911-200000-00cc", status="stopped", engine_s=180.0),
        record("20260911-190000-00dd", status="failed", engine_s=None, note=failed),
    )
