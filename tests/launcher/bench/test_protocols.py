"""The adapters: what they send, and figures in the other tool's own form that follow from the records."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.bench.protocols import lil, sparkdash
from launcher.results.records import RequestRecord
from launcher.results.verify_run import VerifiedRun, verify_run
from tests.launcher.bench.replay_server import ReplayServer
from tests.launcher.bench.test_bench import run


@pytest.fixture
def server() -> Iterator[ReplayServer]:
    with ReplayServer() as running:
        yield running


def measured(done: subprocess.CompletedProcess[str], folder: Path, name: str) -> tuple[VerifiedRun, Any]:
    assert done.returncode == 0, done.stderr
    return verify_run(folder), json.loads((folder / f"{name}.json").read_text())


def rate(record: RequestRecord) -> float:
    assert record.first_token_s is not None and record.completion_tokens is not None
    return (record.completion_tokens - 1) / (record.last_chunk_s - record.first_token_s)


def test_sparkdash(server: ReplayServer, tmp_path: Path) -> None:
    words = ("-p", "sparkdash", "-c", "1,2", "--rounds", "1", "--max-tokens", "9", "-o", str(tmp_path / "r"))
    found, told = measured(run(server, *words), tmp_path / "r", "sparkdash")
    assert found.manifest.protocol == "sparkdash" and found.manifest.protocol_revision == sparkdash.REVISION
    assert {row.protocol for row in found.references} == {"sparkdash"}, "figures of others beside their own"
    asked = [body for body in server.seen if body.get("stream")]
    assert all(body["ignore_eos"] and body["temperature"] == 0 for body in asked)
    texts = {body["messages"][0]["content"] for body in asked}
    assert {sparkdash.PROMPTS["prose"], f"{sparkdash.PROMPTS['prose']} (stream 2/2)"} <= texts
    assert [(item["promptType"], item["concurrency"]) for item in told["decode"]] == [
        (kind, streams) for kind in sparkdash.PROMPTS for streams in (1, 2)
    ]
    for item in told["decode"]:
        records = [
            record
            for record in found.records.requests
            if (record.case, record.concurrency) == (item["promptType"], item["concurrency"])
            and not record.warm_up
        ]
        assert item["streamsOk"] == len(records) == item["concurrency"] and item["streamsFailed"] == 0
        assert item["meanDecodeTps"] == pytest.approx(statistics.fmean(map(rate, records)))
        assert item["totalDecodeTokens"] == 8 * len(records)


def test_lil(server: ReplayServer, tmp_path: Path) -> None:
    server.behaviour = "counted"
    words = ("-p", "lil", "-c", "2", "--rounds", "1", "--window-s", "1", "-o", str(tmp_path / "r"))
    found, told = measured(run(server, *words), tmp_path / "r", "lil")
    assert found.manifest.protocol == "lil" and found.manifest.protocol_revision == lil.REVISION
    assert {row.protocol for row in found.references} == {"lil"}
    assert any("32768 tokens left out" in note for note in found.manifest.notes)
    asked = [body for body in server.seen if body.get("stream")]
    assert all(body["temperature"] == 1.0 and "ignore_eos" not in body for body in asked)
    counted = [record for record in found.records.requests if not record.warm_up]
    assert len(counted) > 2, "streams restart as they finish"
    (level,) = told["results"]
    # A request of which nothing had come when the window ended is no answer.
    failed = [record.error for record in counted if record.error]
    assert (level["concurrency"], level["errors"]) == (2, len(failed))
    assert all(error.startswith("timeout: not complete") for error in failed)
    start_s = min(record.start_s for record in counted)
    inside = sum(record.completion_tokens or 0 for record in counted if record.end_s <= start_s + 1.0)
    assert 0 < inside <= level["tokens"] <= sum(record.completion_tokens or 0 for record in counted)
    assert level["aggregate_tps"] == level["tokens"] / 1.0
    assert told["summary_table"] == [
        {"context": 0, "concurrency": 2, "median_tps": level["aggregate_tps"], "repeats": 1}
    ]
