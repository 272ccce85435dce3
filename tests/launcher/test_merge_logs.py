"""`sparkctl logs`: all nodes merged by time, followed to the end, secrets masked once more."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.connect import SshOptions
from launcher.errors import PreflightRefused, UsageError
from launcher.merge_logs import NodeLine, merge_logs
from launcher.node.run_dir import write_state
from launcher.plan import LaunchPlan
from tests.launcher.local_plan import local_plan
from tests.launcher.node_run import NodeRun

SECRET = "sk-not-for-your-eyes-0123456789"


def plan_in(folder: Path) -> LaunchPlan:
    plan = local_plan(2)
    nodes = tuple(replace(node, state_path=str(folder / node.name)) for node in plan.nodes)
    return replace(plan, nodes=nodes)


def write_log(plan: LaunchPlan, name: str, text: str) -> Path:
    run_dir = Path(plan.node(name).state_path) / "runs" / plan.run_id
    run_dir.mkdir(parents=True)
    (run_dir / "engine.log").write_text(text)
    write_state(run_dir, {"run_id": plan.run_id, "node": name, "phase": "ended", "boot_id": "?"})
    return run_dir


def merged(
    plan: LaunchPlan, *, lines: int = 0, nodes: tuple[str, ...] = (), follow: bool = False
) -> list[NodeLine]:
    return list(
        merge_logs(
            [plan],
            SshOptions(),
            nodes=nodes,
            lines=lines,
            follow=follow,
            name="engine.log",
            secrets=(SECRET,),
        )
    )


def test_lines_are_merged_by_their_time(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    write_log(plan, "node-0", "[2026-01-01 00:00:01] a\n  more of a\n[2026-01-01 00:00:03] c\n")
    write_log(plan, "node-1", "[2026-01-01 00:00:02] b\n[2026-01-01 00:00:04] d without a newline")
    found = [(item.node, item.line.split("] ")[-1]) for item in merged(plan)]
    assert found == [
        ("node-0", "a"),
        ("node-0", "  more of a"),
        ("node-1", "b"),
        ("node-0", "c"),
        ("node-1", "d without a newline"),
    ]


@pytest.mark.parametrize("lines", [1, 2, 3, 50])
def test_the_last_lines_of_each_node(tmp_path: Path, lines: int) -> None:
    plan = plan_in(tmp_path)
    for name in ("node-0", "node-1"):
        write_log(plan, name, "".join(f"line {i}\n" for i in range(10)))
    found = merged(plan, lines=lines)
    assert [item.line for item in found if item.node == "node-1"] == [f"line {i}" for i in range(10)][-lines:]


def test_a_long_tail_is_read_in_blocks(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    text = "".join(f"line {i} {'x' * 997}\n" for i in range(500))
    write_log(plan, "node-0", text)
    write_log(plan, "node-1", "")
    assert [item.line.split()[1] for item in merged(plan, lines=300)] == [str(i) for i in range(200, 500)]


def test_secrets_are_masked_here_too(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    write_log(plan, "node-0", f"leaked {SECRET} here\n")
    write_log(plan, "node-1", "")
    assert [item.line for item in merged(plan)] == ["leaked *** here"]


def test_one_node_without_a_log_does_not_hide_the_others(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    write_log(plan, "node-0", "here\n")
    found = []
    with pytest.raises(PreflightRefused, match=r"this node has no engine\.log") as caught:
        for item in merge_logs(
            [plan], SshOptions(), nodes=(), lines=0, follow=True, name="engine.log", secrets=()
        ):
            found.append(item.line)
    assert found == ["here"] and caught.value.node == "node-1"


def test_an_unknown_node_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--node must be one of node-0, node-1, got node-7"):
        merged(plan_in(tmp_path), nodes=("node-7",))


def test_following_ends_with_the_run_and_misses_no_line(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    run = NodeRun(Path(plan.head.state_path))
    plan = replace(plan, nodes=plan.nodes[:1], run_id=run.run_id)
    run.start("exit-3")
    found = [item.line for item in merged(plan, follow=True)]  # and it ends at all
    assert found[-1].endswith("ValueError: a reason")


def test_following_ends_when_the_supervisor_was_killed(tmp_path: Path) -> None:
    import os
    import signal

    plan = plan_in(tmp_path)
    run = NodeRun(Path(plan.head.state_path)).start()
    plan = replace(plan, nodes=plan.nodes[:1], run_id=run.run_id)
    run.wait_for_rank()
    threading.Timer(0.5, os.kill, (run.state["supervisor_pid"], signal.SIGKILL)).start()
    assert merged(plan, follow=True)
    run.stop()
