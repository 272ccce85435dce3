"""The real engine on this machine, two groups of one node, then two and three nodes, as a user meets it; tiny
Qwen3 for speed.

The embedded default itself, a small V4.1, is in test_local_v41.py.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionUserMessageParam

from tests.cluster.leftovers import (
    assert_nothing_left,
    engine_processes,
    free_ports,
    shared_memory_of,
)
from tests.cluster.sparkctl_process import Sparkctl, assert_one_clear_error

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(600)]

QUESTIONS = ("Say hello from this cluster.", "Which ranks are ready?", "one two three")
MAX_LAUNCHER_BYTES = 120 << 20
SMALL = ("--recipe", "local")
TWO_GROUPS = """schema_version: 1
name: two-groups
description: Two groups of one node on this machine behind sglang-router
extends: local
parallelism: {nodes: 2, groups: 2, tp: 1}
router: {policy: round_robin, health_interval_s: 1}
evidence: {status: not_run, notes: of this test}
"""


def ask(base_url: str, question: str, *, stream: bool) -> str:
    with OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=60) as client:
        message: ChatCompletionUserMessageParam = {"role": "user", "content": question}
        if not stream:
            answer = client.chat.completions.create(
                model="tiny-qwen3", messages=[message], max_tokens=24, temperature=0
            )
            return answer.choices[0].message.content or ""
        chunks = client.chat.completions.create(
            model="tiny-qwen3", messages=[message], max_tokens=24, temperature=0, stream=True
        )
        parts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert sum(bool(part) for part in parts) > 1, "a streamed answer comes in parts"
        return "".join(parts)


def test_groups_of_one_node_and_clusters_of_two_and_three_give_the_same_text(
    local: Sparkctl, tmp_path: Path
) -> None:
    port = free_ports(4)
    texts = {1: texts_of_two_groups(local, port, tmp_path)}
    for num_nodes in (2, 3):
        up = local.start("up", *SMALL, "--nodes", str(num_nodes), "--port", str(port))
        ready = up.wait(240)
        assert ready.exit_code == 0, ready.output
        assert up.peak_bytes < MAX_LAUNCHER_BYTES
        assert f"http://127.0.0.1:{port}/v1" in ready.stdout and "curl -s" in ready.stdout
        pids = [found.pid for found in engine_processes(local.home)]
        shared_memory = shared_memory_of(pids)
        assert len(pids) >= 3 * num_nodes  # per node: supervisor, main process, scheduler
        url = f"http://127.0.0.1:{port}/v1"
        texts[num_nodes] = [ask(url, question, stream=False) for question in QUESTIONS]
        assert [ask(url, question, stream=True) for question in QUESTIONS] == texts[num_nodes]

        status = local.run("status", "--json")
        assert status.exit_code == 0, status.output
        told = status.json()
        assert told["verdict"] == "serving" and len(told["nodes"]) == num_nodes
        assert told["probe"]["seconds"] > 0 and told["engine"]["tp_size"] == num_nodes

        audit = local.run("audit")
        assert audit.exit_code == 0 and audit.stdout.count("as planned") == num_nodes, audit.output
        if num_nodes == 3:
            check_second_up(local, port)
        down = local.run("down")
        assert down.exit_code == 0 and down.seconds < 30, down.output
        assert_nothing_left(local.home, shared_memory, [port, port + 1, port + 2])
        again = local.run("down")
        assert again.exit_code == 0 and "nothing was running" in again.stdout, again.output
        ended = local.run("audit")
        assert ended.exit_code == 6 and "/server_info must be answered" in ended.stdout, ended.output
    assert all(texts[1]) and texts[1] == texts[2] == texts[3]


def texts_of_two_groups(local: Sparkctl, port: int, folder: Path) -> list[str]:
    """Two engines behind sglang-router: one plan, one `up`, one run for every command; a group that dies is
    named while the other serves on, then the router, and `down` ends what is left.
    """
    recipe, file = folder / "two-groups.yaml", folder / "plan.json"
    recipe.write_text(TWO_GROUPS)
    local.run("plan", "--recipe", str(recipe), "--port", str(port), "--output", str(file))
    planned = json.loads(file.read_text())["plans"]
    ids = [plan["run_id"] for plan in planned]
    deployment = ids[0].removesuffix("-g1")
    up = local.up("--plan", str(file))
    assert "serving (group 1, head)" in up.stdout and "serving (group 2, head)" in up.stdout
    assert f"http://127.0.0.1:{port}/v1 (sglang-router)" in up.stdout
    assert f"sparkctl down --run {deployment}" in up.stdout
    assert [local.record(run_id)["plan"] for run_id in ids] == planned  # what ran is what was planned

    url = f"http://127.0.0.1:{port}/v1"
    texts = [ask(url, question, stream=False) for question in QUESTIONS]
    assert [ask(url, question, stream=True) for question in QUESTIONS] == texts
    lines = [json.loads(line) for line in local.run("logs", "--lines", "0", "--json").stdout.splitlines()]
    asked = [line["node"] for line in lines if "POST /v1/chat/completions" in line["line"]]
    assert {"node-0", "node-1"} <= set(asked), asked  # in turn: both groups answered
    assert any(line["node"] == "router" for line in lines)
    told = local.run("status", "--json").json()
    assert (told["deployment"], told["verdict"]) == (deployment, "serving")
    assert [run["part"] for run in told["runs"]] == ["group 1", "group 2", "router"]
    assert all(run["probe"]["seconds"] > 0 for run in told["runs"])

    os.kill(int(next(iter(run_state(local, planned[1])["ranks"]))), signal.SIGKILL)
    wait_for_end(local, planned[1])
    status = local.run("status")
    assert status.exit_code == 6 and f"run {deployment} (two-groups): group 2 dead" in status.stdout
    assert "killed by SIGKILL" in status.stdout and "the router answers from the groups" in status.stdout
    assert [ask(url, question, stream=False) for question in QUESTIONS] == texts

    os.kill(run_state(local, planned[2])["engine_pid"], signal.SIGKILL)
    wait_for_end(local, planned[2])
    status = local.run("status", "--run", deployment)
    assert status.exit_code == 6 and "group 2 dead, router dead" in status.stdout
    assert "the router's main process ended (killed by SIGKILL)" in status.stdout

    shared_memory = shared_memory_of([found.pid for found in engine_processes(local.home)])
    down = local.run("down", "--json")
    assert down.exit_code == 0, down.output
    ended = {item["run_id"]: len(next(iter(item["nodes"].values()))["ended"]) for item in down.json()}
    assert list(ended) == [ids[2], ids[0], ids[1]] and ended[ids[0]] >= 3
    assert ended[ids[1]] == ended[ids[2]] == 0
    assert_nothing_left(local.home, shared_memory, [port, port + 1, port + 2])
    return texts


def run_state(local: Sparkctl, plan: dict[str, Any]) -> dict[str, Any]:
    folder = Path(plan["nodes"][0]["state_path"]) / "runs" / plan["run_id"]
    return dict(json.loads((folder / "state.json").read_text()))


def wait_for_end(local: Sparkctl, plan: dict[str, Any]) -> None:
    deadline = time.monotonic() + 60
    while run_state(local, plan)["phase"] != "ended":
        assert time.monotonic() < deadline, run_state(local, plan)
        time.sleep(0.1)


def check_second_up(local: Sparkctl, port: int) -> None:
    """An `up` while a run lives is refused before anything is started, and says how to go on."""
    run_id = local.run_ids()[-1]
    before = {found.pid for found in engine_processes(local.home)}
    refused = local.run("up", *SMALL, "--nodes", "3", "--port", str(port + 10))
    assert_one_clear_error(refused, run_id, "is still alive", f"sparkctl down --run {run_id}", exit_code=5)
    assert {found.pid for found in engine_processes(local.home)} == before


def test_ctrl_c_during_load_ends_everything(local: Sparkctl) -> None:
    port = free_ports(4)
    up = local.start("up", *SMALL, "--nodes", "2", "--port", str(port))
    up.wait_for("importing the engine", 60)
    time.sleep(2)
    shared_memory = shared_memory_of([found.pid for found in engine_processes(local.home)])
    up.send_interrupt()
    done = up.wait(30)
    assert_one_clear_error(done, "interrupted before the cluster was ready", exit_code=130)
    assert_nothing_left(local.home, shared_memory, [port, port + 1])
    run_id = re.findall(r"run (\d{8}-\d{6}-[0-9a-f]{4})", done.stderr)[0]
    assert local.record(run_id)["status"] == "failed"


def test_an_occupied_api_port_is_refused(local: Sparkctl) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = local.run("up", *SMALL, "--nodes", "1", "--port", str(port))
    assert_one_clear_error(done, f"127.0.0.1:{port} must be free", "--port", exit_code=5)
    assert not engine_processes(local.home)
