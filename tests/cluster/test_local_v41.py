"""The embedded default as a user meets it: a small V4.1 with real attention on three nodes, its Engram rows
from packed files, all made by the first start; and the same with speculative decoding on two nodes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.cluster.leftovers import assert_nothing_left, engine_processes, free_ports, shared_memory_of
from tests.cluster.sparkctl_process import Sparkctl

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = "tiny-v41"
# Short, and more tokens than the sliding window's 128, so that compressed attention takes part.
QUESTIONS = ("Say hello from this cluster.", "one two three", "Which ranks are ready? " * 20)


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sparkctl]:
    sparkctl = Sparkctl(tmp_path_factory.mktemp("v41-user") / "home")
    sparkctl.home.mkdir()
    yield sparkctl
    sparkctl.run("down", "--all")
    sparkctl.close()


def ask(base_url: str, question: str, key: str = "none") -> str:
    with OpenAI(base_url=f"{base_url}/v1", api_key=key, max_retries=0, timeout=60) as client:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": question}],
            max_tokens=16,
            temperature=0,
            extra_body={"ignore_eos": True},
        )
    assert answer.usage and answer.usage.completion_tokens == 16
    return answer.choices[0].message.content or ""


def reports(home: Path, run_id: str, num_nodes: int) -> list[dict[str, Any]]:
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


def check_figures(user: Sparkctl, url: str) -> None:
    """Of the requests so far, live: in the head's /metrics and in `status`."""
    scraped = httpx.get(f"{url}/metrics", timeout=60, trust_env=False).text
    for name in ("draft_seconds_total", "verify_seconds_total", "below_break_even", "requests_off"):
        assert f"sparkctl_spec_{name}" in scraped, name
    figures = user.run("status", "--json").json()["speculation"]
    steps = sum(figures["widths"].values())
    assert steps > 0 and figures["widths"]["5"] == steps  # whole blocks while there is no table
    assert figures["tokens_per_step"] >= 1 and figures["accepted"]["1"] <= 1
    assert figures["draft_s"] > 0 and figures["verify_s"] > 0
    told = user.run("status").stdout
    assert "drafts  tokens/step" in told and "accepted by position" in told and "no cost table" in told


def check_tuning(user: Sparkctl, num_nodes: int) -> None:
    """The running cluster is measured, and every node has the table for its next start."""
    words = ("--max-batch", "1", "--rounds", "2", "--context-tokens", "16", "--allow-busy", "--json")
    tuned = user.run("tune", "spec", *words, timeout_s=240)
    assert tuned.exit_code == 0, tuned.output
    table = tuned.json()
    assert table["batches"] == [1] and len(table["verify_ns"][0]) == 6
    state = user.home / ".local/state/sparkctl"
    files = [
        (state / f"node-{rank}/cost-tables/local-v41-dspark.json").read_bytes() for rank in range(num_nodes)
    ]
    assert len(set(files)) == 1 and json.loads(files[0])["hash"] == table["hash"]


def test_the_default_makes_its_model_and_says_what_it_says_with_drafts(user: Sparkctl) -> None:
    port = free_ports(4)
    url = f"http://127.0.0.1:{port}"
    first = user.up("--nodes", "3", "--port", str(port))
    assert "writing the small model" in first.stderr and "packing its Engram tables" in first.stderr
    run_id = user.run_ids()[-1]
    for report in reports(user.home, run_id, 3):
        assert {"cpu_v41", "balanced_heads", "row_store"} <= set(report["hook_sets"])
    shared_memory = shared_memory_of([found.pid for found in engine_processes(user.home)])
    texts = [ask(url, question) for question in QUESTIONS]
    assert len(set(texts)) == len(texts), "each question has an answer of its own"
    status = user.run("status", "--json")
    assert status.exit_code == 0 and status.json()["verdict"] == "serving", status.output
    check_audit(user, run_id)
    down = user.run("down")
    assert down.exit_code == 0, down.output
    assert_nothing_left(user.home, shared_memory, [port, port + 1, port + 2])

    drafting = user.up("--recipe", "local-v41-dspark", "--nodes", "2", "--port", str(port))
    assert "writing the small model" not in drafting.stderr
    for report in reports(user.home, user.run_ids()[-1], 2):
        assert report["server_args"]["speculative_algorithm"] == "DSPARK"
        assert "row_store" in report["hook_sets"]
        assert report["details"]["speculation"]["table_hash"] == "untuned"
    assert [ask(url, question) for question in QUESTIONS] == texts
    body = {"text": "one", "sampling_params": {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}}
    meta = httpx.post(f"{url}/generate", json=body, timeout=60, trust_env=False).json()["meta_info"]
    assert meta["spec_verify_ct"] > 0, "no draft was verified"
    check_figures(user, url)
    check_tuning(user, 2)
    audit = user.run("audit")
    assert audit.exit_code == 0 and audit.stdout.count("as planned") == 2, audit.output
    assert user.run("down").exit_code == 0
