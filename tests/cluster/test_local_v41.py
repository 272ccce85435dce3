"""A small V4.1 with real attention on three nodes, its Engram rows from packed files, as a user meets it; and
the same model on one node with SGLang's own tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.cluster.leftovers import assert_nothing_left, engine_processes, free_ports, shared_memory_of
from tests.cluster.sparkctl_process import Sparkctl, assert_one_clear_error

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = "tiny-v41"
# Short, and more tokens than the sliding window's 128, so that compressed attention takes part.
QUESTIONS = ("Say hello from this cluster.", "one two three", "Which ranks are ready? " * 20)
# The same model without the plugin's row store: SGLang keeps the tables in memory.
STOCK = """
schema_version: 1
name: stock-tables
description: The same model on one node, Engram tables as SGLang keeps them
extends: local-v41
parallelism: {nodes: 1, tp: 1}
extensions: {engram: {residence: device, packed_path: null}}
evidence: {status: not_run, notes: a test}
"""


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sparkctl]:
    sparkctl = Sparkctl(tmp_path_factory.mktemp("v41-user") / "home")
    sparkctl.home.mkdir()
    yield sparkctl
    sparkctl.run("down", "--all")
    sparkctl.close()


def ask(port: int, question: str) -> str:
    with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=60) as client:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": question}],
            max_tokens=16,
            temperature=0,
            extra_body={"ignore_eos": True},
        )
    assert answer.usage and answer.usage.completion_tokens == 16
    return answer.choices[0].message.content or ""


def reports(home: Path, run_id: str, num_nodes: int) -> list[dict[str, object]]:
    state = home / ".local/state/sparkctl"
    return [
        json.loads((state / f"node-{rank}/runs/{run_id}/reports/rank-{rank:02d}.json").read_text())
        for rank in range(num_nodes)
    ]


def check_audit(user: Sparkctl, run_id: str) -> None:
    """All is as planned; a report that is gone is named with its rank."""
    audit = user.run("audit")
    assert audit.exit_code == 0 and audit.stdout.count("as planned") == 3, audit.output
    report = user.home / f".local/state/sparkctl/node-1/runs/{run_id}/reports/rank-01.json"
    kept = report.read_bytes()
    report.unlink()
    audit = user.run("audit", "--json")
    assert audit.exit_code == 6, audit.output
    (difference,) = audit.json()["differences"]
    assert (difference["node"], difference["rank"], difference["seen"]) == ("node-1", 1, "none")
    report.write_bytes(kept)


def test_three_nodes_with_rows_from_disk_say_what_one_with_stock_tables_says(
    user: Sparkctl, tmp_path: Path
) -> None:
    port = free_ports(4)
    share = user.home / ".local/share/sparkctl"
    model, packed = share / "models" / MODEL, share / "engram" / MODEL / "tp3"
    assert user.run("tiny-model", "v41", str(model)).exit_code == 0
    pack = f"engram pack --checkpoint {model} --out {packed} --tp 3 --ranks all"
    refused = user.run("up", "--recipe", "local-v41", "--port", str(port))
    assert_one_clear_error(refused, str(packed), "no such directory", f"sparkctl {pack}", exit_code=5)
    assert not engine_processes(user.home)
    assert user.run(*pack.split()).exit_code == 0

    user.up("--recipe", "local-v41", "--port", str(port))
    run_id = user.run_ids()[-1]
    for report in reports(user.home, run_id, 3):
        assert report["hook_sets"] == ["cpu_v41", "balanced_heads", "row_store"]
    shared_memory = shared_memory_of([found.pid for found in engine_processes(user.home)])
    texts = [ask(port, question) for question in QUESTIONS]
    status = user.run("status", "--json")
    assert status.exit_code == 0 and status.json()["verdict"] == "serving", status.output
    check_audit(user, run_id)
    down = user.run("down")
    assert down.exit_code == 0, down.output
    assert_nothing_left(user.home, shared_memory, [port, port + 1, port + 2])

    recipe = tmp_path / "stock-tables.yaml"
    recipe.write_text(STOCK)
    user.up("--recipe", str(recipe), "--port", str(port))
    (report,) = reports(user.home, user.run_ids()[-1], 1)
    assert report["hook_sets"] == ["cpu_v41"]
    assert [ask(port, question) for question in QUESTIONS] == texts
    assert user.run("down").exit_code == 0
    assert len(set(texts)) == len(texts), "each question has an answer of its own"
