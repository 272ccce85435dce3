"""A small run, as a benchmark writes it, with figures that the tests can compute by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from launcher.results.finish_run import finish_run
from launcher.results.manifest import (
    NodeDescription,
    PromptSet,
    RunFacts,
    Tolerance,
    Versions,
    resolve,
)
from launcher.results.records import EngineSample, NodeSample, RequestRecord, text_sha256
from launcher.results.run_directory import ENGINE, NODES, REQUESTS

PROMPTS = {"prose": "Write about a tall ship.", "code": "Write a parser for dates."}


def make_request(
    request_id: str = "r0", *, speed: float = 1.0, start_s: float = 1.0, tokens: int = 11, **changes: Any
) -> RequestRecord:
    """Eleven tokens in six chunks: the first after 0.5 s, the last 1 s later at speed 1."""
    text = changes.pop("output_text", f"An answer to {request_id}.")
    case = changes.get("case", "prose")
    first_s = start_s + 0.5 / speed
    chunks = tuple(first_s + step * 0.2 / speed for step in range(6))
    values: dict[str, Any] = {
        "request_id": request_id,
        "protocol": "sparkctl",
        "suite": "decode",
        "case": case,
        "concurrency": 1,
        "round": 0,
        "warm_up": False,
        "prompt_sha256": text_sha256(PROMPTS[case]),
        "prompt_tokens": 100,
        "cached_tokens": 0,
        "completion_tokens": tokens,
        "start_s": start_s,
        "first_token_s": first_s,
        "chunk_times_s": chunks,
        "end_s": chunks[-1] + 0.01,
        "finish_reason": "length",
        "error": None,
        "output_sha256": text_sha256(text),
        "output_text": text,
        "seed": 1,
        "max_tokens": tokens,
        "params": {"temperature": 0.0},
    }
    return RequestRecord.model_validate({**values, **changes})


def make_requests(speed: float = 1.0) -> list[RequestRecord]:
    """Two cases, C1 and C2, a warm-up round and two measured ones."""
    found: list[RequestRecord] = []
    for case in PROMPTS:
        for concurrency in (1, 2):
            for round_idx in range(3):
                for stream in range(concurrency):
                    start_s = 1.0 + 10 * len(found)
                    found.append(
                        make_request(
                            f"{case}-c{concurrency}-r{round_idx}-s{stream}",
                            speed=speed * (1 + 0.01 * round_idx),
                            start_s=start_s - (10.0 if stream else 0.0),
                            case=case,
                            concurrency=concurrency,
                            round=round_idx,
                            warm_up=round_idx == 0,
                        )
                    )
    return found


def make_engine_samples(case: str = "prose", **changes: Any) -> list[EngineSample]:
    """Around round 1 at C1: ten decode passes with ten tokens, 30 of 40 Engram rows from memory."""
    cell = {"protocol": "sparkctl", "suite": "decode", "case": case, "concurrency": 1, "round": 1, **changes}
    passes = 'sglang:cuda_graph_passes_total{mode="decode_none",tp_rank="0"}'
    tokens = 'sglang:realtime_tokens_total{mode="decode",tp_rank="0"}'
    prefill = 'sglang:realtime_tokens_total{mode="prefill_compute",tp_rank="0"}'
    rows = [f'sparkctl_engram_rows_total{{tp_rank="{rank}"}}' for rank in range(2)]
    hits = [f'sparkctl_engram_hit_rows_total{{tp_rank="{rank}"}}' for rank in range(2)]
    before = {passes: 5.0, tokens: 7.0, prefill: 100.0, **dict.fromkeys((*rows, *hits), 10.0)}
    after = {
        passes: 15.0,
        tokens: 17.0,
        prefill: 200.0,
        **dict.fromkeys(rows, 30.0),
        **dict.fromkeys(hits, 25.0),
    }
    return [
        EngineSample.model_validate({**cell, "when": when, "time_s": time_s, "metrics": metrics})
        for when, time_s, metrics in (("before", 0.5, before), ("after", 9.0, after))
    ]


def make_facts(**changes: Any) -> RunFacts:
    values: dict[str, Any] = {
        "run_id": "bench-1",
        "protocol": "sparkctl",
        "protocol_revision": "1",
        "suites": ("decode",),
        "command": ("sparkctl", "bench", "--suite", "decode"),
        "settings": {"suites": ["decode"], "concurrency": [1, 2], "rounds": 2},
        "started_at": "2026-11-29T20:00:00Z",
        "ended_at": "2026-11-29T20:05:00Z",
        "endpoint": "cluster",
        "served_model": "tiny",
        "recipe": resolve("local-cpu", {"name": "local-cpu", "parallelism": {"tp": 3}}),
        "topology": resolve("local", {"nodes": ["node-0", "node-1"]}),
        "lock_sha256": "ab" * 32,
        "versions": Versions(sparkctl="0.1.0", sglang="0.5.23"),
        "engine_args": {"tp_size": 3, "mem_fraction_static": 0.5},
        "prompts": tuple(
            PromptSet(suite="decode", case=case, sha256=(text_sha256(text),))
            for case, text in PROMPTS.items()
        ),
        "nodes": (NodeDescription(node="node-0", kernel="6.8.0"), NodeDescription(node="node-1")),
        "tolerance": Tolerance(throughput=0.1, latency=0.25),
    }
    return RunFacts.model_validate({**values, **changes})


def make_run(directory: Path, *, speed: float = 1.0, render: Any = None, **changes: Any) -> Path:
    requests = changes.pop("requests", None) or make_requests(speed)
    references = changes.pop("references", ())
    samples = changes.pop("samples", None)
    samples = make_engine_samples() if samples is None else samples
    nodes = [
        NodeSample(node="node-0", time_s=1.0, gpu_clock_mhz=2190.0, gpu_power_w=40.5),
        NodeSample(node="node-0", time_s=2.0, gpu_clock_mhz=2520.0),
    ]
    directory.mkdir(parents=True)
    for name, records in ((REQUESTS, requests), (ENGINE, samples), (NODES, nodes)):
        (directory / name).write_text("".join(record.model_dump_json() + "\n" for record in records))
    finish_run(directory, make_facts(**changes), render=render, references=references)
    return directory
