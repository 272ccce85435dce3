"""`tune spec` without an engine: what it refuses, what it runs, and how a table gets to the nodes.

The measurement itself is in tests/cluster/test_local_v41.py, on a running cluster.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.call_node import ask_node
from launcher.cli.tune import describe
from launcher.errors import PreflightRefused
from launcher.local_remote import LocalRemote
from launcher.plan import LaunchPlan
from launcher.tune_spec import TABLE_VARIABLE, TunedTable, TuneOptions, table_path, tune_argv, tune_spec
from tests.launcher.local_plan import local_plan

PROJECT = Path(__file__).parents[2]
OPTIONS = TuneOptions(context_tokens=16, max_batch=2, rounds=2, timeout_s=60)
REPORTED = {
    "engine": {
        "sglang": "0.5.23",
        "model": "tiny-v41",
        "tp_size": 3,
        "verify": "compact",
        "block": 5,
        "context_tokens": 1,
    },
    "table_hash": "untuned",
    "graph_batches": [1, 2],
    "max_batch": 2,
}


def tunable_plan(folder: Path) -> LaunchPlan:
    """Of a run whose engine is gone; its head's report is there."""
    plan = local_plan(3)
    reports = folder / "runs" / plan.run_id / "reports"
    reports.mkdir(parents=True)
    (reports / "rank-00.json").write_text(json.dumps({"details": {"speculation": REPORTED}}))
    nodes = []
    for node in plan.nodes:
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join([str(PROJECT), *sys.path]),
            TABLE_VARIABLE: str(folder / node.name / "table.json"),
        }
        argv = (sys.executable, *node.argv[1:])
        nodes.append(replace(node, state_path=str(folder), environment=environment, argv=argv))
    return replace(plan, nodes=tuple(nodes), api=replace(plan.api, host="127.0.0.1", port=1))


def test_a_run_that_decides_no_widths_is_refused() -> None:
    with pytest.raises(PreflightRefused, match=r"must decide widths to be tuned, got .*width: block") as told:
        table_path(local_plan(3).head)
    assert "extensions.dspark.width to auto" in told.value.hint


def test_an_engine_in_a_container_is_refused(tmp_path: Path) -> None:
    head = replace(tunable_plan(tmp_path).head, container="sparkctl-x")
    with pytest.raises(PreflightRefused, match="must run without a container to be tuned, got sparkctl-x"):
        table_path(head)


def test_the_engine_s_own_python_measures(tmp_path: Path) -> None:
    plan = tunable_plan(tmp_path)
    assert tune_argv(plan, OPTIONS)[:5] == [
        sys.executable, "-m", "sgl_ext.speculation.tune", "--url", "http://127.0.0.1:1"
    ]  # fmt: skip
    assert tune_argv(plan, OPTIONS)[-2:] == ["--max-batch", "2"]
    assert "--allow-busy" not in tune_argv(plan, OPTIONS)
    assert "--allow-busy" in tune_argv(plan, replace(OPTIONS, allow_busy=True))
    assert "--max-batch" not in tune_argv(plan, replace(OPTIONS, max_batch=None))


def test_an_engine_that_does_not_answer_ends_it_by_name_and_no_table_is_left(tmp_path: Path) -> None:
    plan = tunable_plan(tmp_path)
    remotes = {node.name: LocalRemote(node.name) for node in plan.nodes}
    with pytest.raises(PreflightRefused, match=r"engine must answer at http://127\.0\.0\.1:1, got"):
        tune_spec(plan, remotes, "sk-secret", OPTIONS, lambda line: None)
    assert not list(tmp_path.glob("node-*"))


def test_a_table_replaces_the_old_one_and_is_its_users_own(tmp_path: Path) -> None:
    path = tmp_path / "cost-tables" / "r.json"
    remote = LocalRemote("node-0")
    for content in ("sha256:1", "sha256:2"):
        text = json.dumps({"hash": content})
        assert ask_node(remote, "put_table", path=str(path), text=text) == {"hash": content}
        assert json.loads(path.read_text())["hash"] == content
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["r.json"]


def test_the_table_is_told_in_milliseconds_a_step() -> None:
    table = TunedTable(
        hash="sha256:1",
        batches=(1, 4),
        verify_ns=((10_000_000, 12_000_000), (20_000_000, 25_000_000)),
        draft_ns=(2_000_000, 3_000_000),
        path={"a": "/t", "b": "/t"},
    )
    lines = describe(table).splitlines()
    assert lines[1].split() == ["1", "2.00", "10.00", "14.00"]
    assert lines[2].split() == ["4", "3.00", "20.00", "28.00"]
    assert "sha256:1 on 2 node(s): /t" in lines[3]
