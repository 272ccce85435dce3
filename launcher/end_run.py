"""End a recorded run from its record alone: reach its nodes, stop it there, write down that it ended."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from launcher.call_node import Answer
from launcher.connect import SshOptions, connect_all
from launcher.run_on_all import errors_of
from launcher.run_record import RunRecord, RunRecords
from launcher.stop_cluster import stop_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class DownResult:
    """`errors`: nodes that could not be asked. `left`: processes that even SIGKILL did not end."""

    run_id: str
    seconds: float
    answers: dict[str, Answer]
    errors: dict[str, str]

    @property
    def left(self) -> dict[str, list[dict[str, Any]]]:
        return {node: answer["left"] for node, answer in self.answers.items() if answer["left"]}

    def problems(self) -> dict[str, str]:
        stuck = {
            node: f"pid {left[0]['pid']} ({left[0]['title'][:60]}) does not end, state {left[0]['state']}"
            for node, left in self.left.items()
        }
        return {**self.errors, **stuck}

    def as_dict(self) -> dict[str, Any]:
        return {"run_id": self.run_id, "seconds": self.seconds, "nodes": self.answers, "errors": self.errors}


def end_run(record: RunRecord, records: RunRecords, options: SshOptions) -> DownResult:
    """Idempotent. The record says stopped only when every node was reached and nothing is left."""
    started = time.monotonic()
    plan = record.plan
    with connect_all([node.node for node in plan.nodes], options) as remotes:
        results = stop_nodes(plan, remotes, memory_timeout_s=plan.limits.stop_timeout_s)
    errors = errors_of(results)
    result = DownResult(
        run_id=plan.run_id,
        seconds=round(time.monotonic() - started, 3),
        answers={name: item.unwrap() for name, item in results.items() if item.error is None},
        errors={
            name: f"{error.message} ({error.hint})" if error.hint else error.message
            for name, error in errors.items()
        },
    )
    if not result.problems():
        records.forget_key(plan.run_id)
        if record.status in ("starting", "ready"):
            records.update(record, status="stopped")
    return result
