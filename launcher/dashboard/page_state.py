"""Pure: what /api/state answers, from what is known. Every text in it is masked; None is "not measured"."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from launcher.cluster_status import NodeReport, describe_node, worst_status
from launcher.dashboard.history import Figures
from launcher.dashboard.load_estimate import estimate_load
from launcher.dashboard.recent_errors import merge_errors
from launcher.dashboard.run_facts import PROOF_S, SILENT_S, Moment, NodeNow, RunNow, State
from launcher.engine_phase import Phase
from launcher.errors import NodeUnreachable
from launcher.redact import Masker
from launcher.run_on_all import Result
from launcher.run_record import RunRecord

STATE_VERSION = 1
MAX_ERRORS = 30
PLOTS = ("tokens_per_s", "tokens_per_step", "kv_usage", "queued", "engram_hit_share", "engram_wait_p95_us")
CONNECTING = "connecting"


def page_state(moment: Moment, secrets: tuple[str, ...] = ()) -> State:
    """Ready for JSON: no NaN, no inf."""
    state = {
        "version": STATE_VERSION,
        "at_unix": round(moment.now_unix, 1),
        "runs": [_open_run(run, moment) for run in moment.open_runs],
        "ended": [_ended_run(record) for record in moment.ended],
        "unreadable": moment.unreadable,
    }
    masker = Masker(secrets)
    return {key: _masked(value, masker) for key, value in state.items()}


def _masked(value: Any, masker: Masker) -> Any:
    if isinstance(value, str):
        return masker.mask(value)
    if isinstance(value, dict):
        return {key: _masked(item, masker) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(item, masker) for item in value]
    return value


def _common(record: RunRecord) -> State:
    return {
        "run_id": record.run_id,
        "recipe": record.plan.recipe,
        "topology": record.plan.topology,
        "model": record.plan.api.served_name,
        "url": f"{record.plan.api.url}/v1",
        "started_unix": record.started_unix,
        "record": record.status,
        "skipped_checks": list(record.skipped_checks),
    }


def _ended_run(record: RunRecord) -> State:
    note = record.note.splitlines()[0] if record.note else ""
    return {**_common(record), "num_nodes": len(record.plan.nodes), "note": note[:300]}


def _open_run(run: RunNow, moment: Moment) -> State:
    serving = _is_serving(run, moment.now_s)
    reports = [_report(node, run, moment.now_s, serving=serving) for node in run.nodes]
    known = tuple(report for report in reports if report is not None)
    verdict = worst_status(known) if known and len(known) == len(reports) else CONNECTING
    errors = merge_errors([error for node in run.nodes for error in node.errors], MAX_ERRORS)
    return {
        **_common(run.record),
        "verdict": verdict,
        "proof": _proof(run, moment.now_s),
        "load": _load(run, moment) if verdict in ("loading", CONNECTING) else None,
        "nodes": [_node(node, report) for node, report in zip(run.nodes, reports, strict=True)],
        "figures": _figures(run, moment.now_s),
        "metrics_problem": run.metrics_problem,
        "plots": {name: run.history.series(name, moment.now_s) for name in PLOTS},
        "errors": [asdict(error) for error in errors],
    }


def _is_serving(run: RunNow, now_s: float) -> bool:
    """A token was generated lately, and asking for one has not failed since."""
    proof = run.proof
    return proof.holds() and proof.token_s is not None and now_s - proof.token_s <= 2 * PROOF_S


def _report(node: NodeNow, run: RunNow, now_s: float, *, serving: bool) -> NodeReport | None:
    """None while nothing can be said: the node, or the first token, has just been asked for."""
    heard = node.heard
    if heard is None:
        return None
    if heard.error is None and now_s - node.heard_s > SILENT_S:
        silent = f"no answer for {now_s - node.heard_s:.0f} s"
        heard = Result(error=NodeUnreachable(silent, node=node.plan.name))
    was_ready = run.record.status == "ready"
    report = describe_node(node.plan, heard, serving=serving, was_ready=was_ready)
    unproved = run.proof.token_s is None and run.proof.failed_s is None
    # A run that was ready before we came is not called broken before its first answer.
    return None if unproved and report.status == "not-serving" else report


def _node(node: NodeNow, report: NodeReport | None) -> State:
    status = report.status if report else CONNECTING
    detail = report.detail if report else "asked, no answer yet"
    if status == "loading":
        detail = node.phase_text or report.detail if report else ""
    plan = node.plan
    run = node.heard.value if node.heard and node.heard.error is None else None
    ranks = (run or {}).get("state", {}).get("ranks", {})
    return {
        "name": plan.name,
        "ranks": list(plan.ranks),
        "is_head": plan.is_head,
        "status": status,
        "detail": detail,
        "num_processes": report.num_processes if report else 0,
        "num_ranks_alive": len(ranks) if status in ("serving", "loading", "not-serving", "frozen") else None,
        "phase": node.phase.label if node.phase is not None else None,
        "phase_share": int(node.phase) / int(Phase.READY) if node.phase is not None else None,
    }


def _proof(run: RunNow, now_s: float) -> State:
    proof = run.proof
    return {
        "age_s": round(now_s - proof.token_s, 1) if proof.token_s is not None else None,
        "seconds": proof.seconds,
        "failure": "" if proof.holds() else proof.failure,
    }


def _load(run: RunNow, moment: Moment) -> State:
    earlier = (*(other.record for other in moment.open_runs), *moment.ended)
    estimate = estimate_load(run.record, earlier, moment.now_unix)
    furthest_back = min((node.phase for node in run.nodes if node.phase is not None), default=None)
    return {
        "elapsed_s": round(estimate.elapsed_s, 1),
        "usual_s": estimate.usual_s,
        "remaining_s": round(estimate.remaining_s, 1) if estimate.remaining_s is not None else None,
        "num_earlier": estimate.num_earlier,
        "phase": furthest_back.label if furthest_back is not None else None,
        "phase_share": int(furthest_back) / int(Phase.READY) if furthest_back is not None else None,
    }


def _figures(run: RunNow, now_s: float) -> State:
    """Figures that nobody renewed for a while are not the present: they are left out."""
    history = run.history
    fresh = history.newest_s is not None and now_s - history.newest_s <= SILENT_S
    figures = (history.newest if fresh else None) or Figures()
    return {name: _finite(value) for name, value in asdict(figures).items()} | {
        # More than the largest bound that the engine counts with.
        "engram_wait_is_beyond": figures.engram_wait_p95_us == math.inf
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
