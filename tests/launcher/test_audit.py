"""The plan of a real run of local-v41 against the reports of its three ranks, as they are and changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.audit_plan import audit_reports, audit_server_info, expects_reports, plan_options
from launcher.audit_run import gather_reports, require_effect
from launcher.errors import AuditFailed, ConnectionLost, PreflightRefused
from launcher.local_remote import LocalRemote
from launcher.plan import LaunchPlan, plan_from_json
from launcher.rank_report import parse_reports
from launcher.remote import Remote, RemoteResult
from tests.launcher.local_plan import local_plan

RECORDED = Path(__file__).parent / "audit_recorded"
INFO = {"version": "0.5.23", "tp_size": 3, "ep_size": 1, "nnodes": 3, "served_model_name": "tiny-v41"}


def recorded_plan() -> LaunchPlan:
    return plan_from_json((RECORDED / "plan.json").read_text())


def recorded(rank: int) -> dict[str, Any]:
    return dict(json.loads((RECORDED / f"rank-{rank:02d}.json").read_text()))


def as_answer(rank: int, report: dict[str, Any] | None = None) -> dict[str, Any]:
    """What a node's code sends."""
    reports = {f"rank-{rank:02d}.json": recorded(rank) if report is None else report}
    return {"reports": reports, "refusals": {}, "damaged": {}}


def audit(
    change: Callable[[dict[str, Any]], object] | None = None, plan: LaunchPlan | None = None
) -> list[str]:
    """Differences when rank 1's report is changed."""
    nodes = {}
    for rank in range(3):
        report = recorded(rank)
        if change and rank == 1:
            change(report)
        nodes[f"node-{rank}"] = parse_reports(as_answer(rank, report))
    return [str(item) for item in audit_reports(plan or recorded_plan(), nodes)]


def test_a_run_as_planned_has_no_difference() -> None:
    assert audit() == []
    assert audit_server_info(recorded_plan(), INFO) == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r["server_args"].update(tp_size=2), "node-1 rank 1: --tp-size must be 3, got 2"),
        (lambda r: r["server_args"].update(ep_size=3), "node-1 rank 1: --ep-size must be 1, got 3"),
        (lambda r: r["server_args"].update(nnodes=1), "node-1 rank 1: --nnodes must be 3, got 1"),
        (lambda r: r["server_args"].update(model_path="/m"), "--model-path must be /home/spark/"),
        (
            lambda r: r["resolved"].update(chunked_prefill_size=512),
            "rank 1: --chunked-prefill-size must be 2048, got 512, as SGLang decided against its argument",
        ),
        (
            lambda r: r["resolved"].update(speculative_algorithm=None),
            "node-1 rank 1: --speculative-algorithm must be DSPARK, got None, as SGLang decided",
        ),
        (lambda r: r["server_args"].update(enable_metrics=False), "--enable-metrics must be true, got False"),
        (
            lambda r: r["server_args"].update(mem_fraction_static=0.9),
            "--mem-fraction-static must be 0.8, got 0.9",
        ),
        (
            lambda r: r["resolved"].update(page_size=64),
            "node-1 rank 1: page_size must be 256, as on rank 0, got 64",
        ),
        (lambda r: r.pop("resolved"), "got one that is no report: resolved"),
        (lambda r: r["versions"].update(sglang="0.5.24"), "sglang must be 0.5.23, got 0.5.24"),
        (lambda r: r["versions"].update(torch="2.1.0"), "as on rank 0, got 2.1.0"),
        (lambda r: r["hook_sets"].remove("row_store"), "with row_store (Engram rows from disk)"),
        (
            lambda r: r["hook_sets"].remove("balanced_heads"),
            "as on rank 0, got cpu_v41, experts, speculation",
        ),
        (lambda r: r["hooks"][3].update(in_effect=False), "must be in effect, got not in effect"),
        (lambda r: r["hooks"][3].update(fingerprint="x"), "hooks must be the same as on rank 0"),
        (lambda r: r["hooks"].clear(), "got none"),
        (
            lambda r: r["details"].update(speculation={"table_hash": "sha256:1"}),
            "node-1 rank 1: the cost table must be untuned, as on rank 0, got sha256:1",
        ),
        (lambda r: r["settings"].update(engram_dir=None), "the folder of Engram rows must be /home/spark/"),
        (
            lambda r: r["details"]["environment"].pop("GLOO_SOCKET_IFNAME"),
            "node-1 rank 1: GLOO_SOCKET_IFNAME must be 'lo', got unset",
        ),
        (
            lambda r: r["details"]["environment"].update(SPARKCTL_ENGRAM_CACHE_GIB="4"),
            "SPARKCTL_ENGRAM_CACHE_GIB must be '0.01', got '4'",
        ),
        (lambda r: r.update(schema_version=9), "got one that must be the report of schema 1"),
        (lambda r: r.update(rank=2), "got one that must be the report"),
        (lambda r: r.pop("settings"), "got one that is no report: settings"),
    ],
)
def test_each_difference_is_named_with_node_and_rank(
    change: Callable[[dict[str, Any]], object], words: str
) -> None:
    found = audit(change)
    assert any(words in item for item in found), found
    assert all(item.startswith("node-1") for item in found)


def test_each_difference_says_what_to_do_next() -> None:
    """A setting that SGLang decided against its argument can be planned as it is, or looked up in its log."""
    plan = recorded_plan()
    reports = {f"node-{rank}": parse_reports(as_answer(rank)) for rank in range(3)}
    answer = as_answer(1)
    answer["reports"]["rank-01.json"]["resolved"]["chunked_prefill_size"] = 512
    (decided,) = audit_reports(plan, {**reports, "node-1": parse_reports(answer)})
    where = f"--run {plan.run_id} --node node-1"
    assert decided.next_step == (
        "set chunked-prefill-size to 512 in the recipe, or read why SGLang did: "
        f"sparkctl logs --lines 0 {where}"
    )
    answer["reports"].clear()
    (missing,) = audit_reports(plan, {**reports, "node-1": parse_reports(answer)})
    assert missing.next_step == f"sparkctl logs {where}"


def test_a_choice_that_the_plan_leaves_open_is_sglangs() -> None:
    plan = recorded_plan()
    nodes = tuple(replace(node, argv=(*node.argv, "--reasoning-parser", "auto")) for node in plan.nodes)

    def resolve(report: dict[str, Any]) -> None:
        report["resolved"]["reasoning_parser"] = "deepseek-v41"

    assert audit(resolve, replace(plan, nodes=nodes)) == []


def test_a_containers_own_options_are_not_the_engines() -> None:
    words = ("docker", "run", "--init", "--device", "/dev/infiniband", "image", "python3", "-m")
    engine = ("sglang.launch_server", "--tp-size", "3", "--enable-metrics", "--port", "1")
    assert plan_options((*words, *engine)) == {"tp-size": "3", "enable-metrics": "true", "port": "1"}


def test_rows_from_disk_that_nobody_planned_are_a_difference() -> None:
    plan = recorded_plan()
    nodes = tuple(
        replace(node, environment={k: v for k, v in node.environment.items() if k != "SPARKCTL_ENGRAM_DIR"})
        for node in plan.nodes
    )
    found = audit(plan=replace(plan, nodes=nodes))
    assert sum("without row_store" in item for item in found) == 3


def test_the_heads_own_words_are_compared() -> None:
    (wrong,) = audit_server_info(recorded_plan(), {**INFO, "tp_size": 1})
    assert str(wrong) == "node-0: /server_info tp_size must be 3, got 1"
    (silent,) = audit_server_info(recorded_plan(), {"failed": "ConnectionRefusedError"})
    assert "ConnectionRefusedError" in str(silent)


@pytest.mark.parametrize(
    ("runtime", "environment", "expected"),
    [
        ("cpu", {}, True),
        ("docker", {}, False),
        ("docker", {"SPARKCTL_ENGRAM_DIR": "/e"}, True),
        ("venv", {"SGLANG_PLUGINS": "other"}, False),
        ("venv", {"SGLANG_PLUGINS": "other, sgl_ext"}, True),
    ],
)
def test_where_reports_are_expected(runtime: str, environment: dict[str, str], expected: bool) -> None:
    plan = local_plan(1)
    head = replace(plan.head, environment=environment)
    assert expects_reports(replace(plan, runtime=runtime, nodes=(head,))) is expected


@contextmanager
def nodes_of_this_machine(plan: LaunchPlan, folder: Path) -> Iterator[tuple[LaunchPlan, dict[str, Remote]]]:
    """Stand-ins for nodes with the run's directory and its recorded reports, read by the node code itself."""
    nodes = tuple(replace(node, state_path=str(folder / node.name)) for node in plan.nodes)
    for node in nodes:
        reports = folder / node.name / "runs" / plan.run_id / "reports"
        reports.mkdir(parents=True)
        for rank in node.ranks:
            (reports / f"rank-{rank:02d}.json").write_bytes((RECORDED / f"rank-{rank:02d}.json").read_bytes())
    remotes: dict[str, Remote] = {node.name: LocalRemote(node.name) for node in nodes}
    try:
        yield replace(plan, nodes=nodes), remotes
    finally:
        for remote in remotes.values():
            remote.close()


def test_up_does_not_call_ready_what_has_not_reported(tmp_path: Path) -> None:
    with nodes_of_this_machine(recorded_plan(), tmp_path) as (plan, remotes):
        require_effect(plan, remotes, skip=())
        reports = tmp_path / "node-2/runs" / plan.run_id / "reports"
        (reports / "rank-02.json").unlink()
        with pytest.raises(AuditFailed, match=r"node-2 rank 2: reports/rank-02\.json .* got none") as told:
            require_effect(plan, remotes, skip=())
        assert told.value.exit_code == 6 and plan.run_id in told.value.hint
        require_effect(plan, remotes, skip=("audit",))
        (reports / "rank-02.json").write_text('{"rank": ')
        (reports / "refusal-rank-02.json").write_text('{"message": "the hook on X must be in effect"}')
        problems = gather_reports(plan, remotes)["node-2"].problems
        assert problems["rank-02.json"].startswith("is damaged")
        assert problems["refusal-rank-02.json"] == "is a refusal: the hook on X must be in effect"


class BrokenOnce(LocalRemote):
    """The first request finds the connection gone."""

    num_broken = 0

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0) -> RemoteResult:
        if self.num_broken == 0:
            self.num_broken += 1
            raise ConnectionLost("the connection broke", node=self.node)
        return super().run(argv, stdin=stdin, timeout_s=timeout_s)


def test_a_connection_that_breaks_in_this_moment_does_not_end_a_start(tmp_path: Path) -> None:
    with nodes_of_this_machine(recorded_plan(), tmp_path) as (plan, remotes):
        broken = BrokenOnce("node-1")
        require_effect(plan, {**remotes, "node-1": broken}, skip=())
        assert broken.num_broken == 1


def test_a_node_that_lost_the_run_is_named(tmp_path: Path) -> None:
    with nodes_of_this_machine(recorded_plan(), tmp_path) as (plan, remotes):
        gone = replace(plan, run_id="20260101-000000-0000")
        with pytest.raises(PreflightRefused, match="has nothing of run 20260101-000000-0000"):
            gather_reports(gone, remotes)
