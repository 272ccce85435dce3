"""The real engine on this machine, one, two and three nodes, as a user meets it; tiny Qwen3 for speed.

The embedded default itself, a small V4.1, is in test_local_v41.py.
"""

from __future__ import annotations

import re
import time

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


def test_one_two_and_three_nodes_give_the_same_text(local: Sparkctl) -> None:
    texts: dict[int, list[str]] = {}
    port = free_ports(4)
    for num_nodes in (1, 2, 3):
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

        if num_nodes == 3:
            check_second_up(local, port)
        down = local.run("down")
        assert down.exit_code == 0 and down.seconds < 30, down.output
        assert_nothing_left(local.home, shared_memory, [port, port + 1, port + 2])
        again = local.run("down")
        assert again.exit_code == 0 and "nothing was running" in again.stdout, again.output
    assert all(texts[1]) and texts[1] == texts[2] == texts[3]


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
