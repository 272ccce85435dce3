"""Compare the load generator with a bare client, sglang.benchmark.serving and llama-benchy, on one
running server:

    python -m benchmarks.load_generator --url http://127.0.0.1:30000 --model NAME --tokenizer DIR --output DIR

All alternate in every round and ask for the same: temperature 0, ignore_eos. Overhead at C16: tokens a
second and CPU seconds a token, of `sparkctl bench`'s sender against a client that only reads bytes from a
socket. Agreement at C1: decode tokens a second of one stream as each tool reports it. Writes raw.json with
every round and summary.json with the medians beside the bars.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from launcher.bench.corpus import read_corpus
from launcher.bench.endpoint import Endpoint
from launcher.bench.http_stream import StreamLimits
from launcher.bench.prompts import decode_body
from launcher.bench.protocols.llama_benchy import WITHOUT_TOKEN_IDS
from launcher.bench.send import Sender
from launcher.bench.wave import Ask, Wave
from launcher.results.summarize import summarize

STREAMS = 16
LAST_CHUNK = b"\r\n0\r\n\r\n"
MOST_OVERHEAD = 0.02
MOST_DIFFERENCE = 0.03
PROMPT_TOKENS = 64
# SGLang's benchmark sends these two. A tool that samples, or sends min_tokens too, measures another engine:
# either costs a small model some percent of each step.
SAME_PARAMETERS = {"temperature": 0, "ignore_eos": True}
BOOK_URL = "http://localhost/standard-library"


def make_wave(round_idx: int, streams: int, num_tokens: int) -> Wave:
    parameters = {"max_tokens": num_tokens, **SAME_PARAMETERS}
    asks = tuple(
        Ask(name=f"s{n}", body=decode_body("prose", n, f"{round_idx}/{n}", **parameters))
        for n in range(streams)
    )
    return Wave(suite="decode", case="prose", concurrency=streams, round=round_idx, asks=asks)


def run_sparkctl(endpoint: Endpoint, wave: Wave) -> dict[str, float]:
    sender = Sender(
        endpoint=endpoint,
        protocol="sparkctl-1-forced",
        limits=StreamLimits(first_byte_s=60, stall_s=60, total_s=120),
        origin_s=time.monotonic(),
        keep=lambda record, answer: None,
    )
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    records = asyncio.run(sender.send_wave(wave))
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    failed = [record.error for record in records if record.error]
    if failed:
        raise RuntimeError(f"a request failed: {failed[0]}")
    tokens = sum(record.completion_tokens or 0 for record in records)
    cell = summarize(records).cells[0]
    assert cell.request_tokens_per_s is not None
    return {
        "tokens": tokens,
        "tokens_per_s": tokens / wall_s,
        "cpu_us_per_token": cpu_s / tokens * 1e6,
        "request_decode_tokens_per_s": cell.request_tokens_per_s.median,
    }


class _Bare(asyncio.Protocol):
    """Bytes from the socket until the last chunk; nothing is parsed or timed meanwhile."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.tail = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.parts.append(data)
        # The last chunk may come alone: with only `data` looked at, the wave lasted until the server hung up.
        self.tail = (self.tail + data)[-len(LAST_CHUNK) :]
        if self.tail == LAST_CHUNK and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def _send_bare(endpoint: Endpoint, body: dict[str, Any]) -> int:
    target = urlsplit(endpoint.url)
    whole = {"model": endpoint.model, **body, "stream": True, "stream_options": {"include_usage": True}}
    content = json.dumps(whole).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {target.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    transport, reader = await asyncio.get_running_loop().create_connection(
        _Bare, target.hostname or "", target.port or 80
    )
    transport.write(head.encode() + content)
    await reader.done
    transport.abort()
    tail = b"".join(reader.parts[-3:])
    return int(tail.partition(b'"completion_tokens":')[2].partition(b",")[0])


def run_bare(endpoint: Endpoint, wave: Wave) -> dict[str, float]:
    async def send_all() -> list[int]:
        return await asyncio.gather(*(_send_bare(endpoint, ask.body) for ask in wave.asks))

    wall_s, cpu_s = time.perf_counter(), time.process_time()
    tokens = sum(asyncio.run(send_all()))
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    return {"tokens": tokens, "tokens_per_s": tokens / wall_s, "cpu_us_per_token": cpu_s / tokens * 1e6}


def run_serving(endpoint: Endpoint, arguments: argparse.Namespace, seed: int) -> dict[str, float]:
    """1000 / its median time per output token (ms), of requests one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        result, prompts = Path(folder) / "serving.jsonl", Path(folder) / "prompts.jsonl"
        prompts.write_text("".join(_as_conversation(seed, i) for i in range(arguments.requests)))
        argv = [
            sys.executable, "-m", "sglang.benchmark.serving", "--backend", "sglang-oai-chat",
            "--base-url", endpoint.url, "--model", endpoint.model, "--tokenizer", arguments.tokenizer,
            "--dataset-name", "custom", "--dataset-path", str(prompts),
            "--sharegpt-output-len", str(arguments.tokens),
            "--num-prompts", str(arguments.requests),
            "--max-concurrency", "1", "--seed", str(seed), "--warmup-requests", "1", "--disable-tqdm",
            "--output-file", str(result),
        ]  # fmt: skip
        _run(argv, **_stand_ins())
        found = json.loads(result.read_text().splitlines()[-1])
    return {
        "request_decode_tokens_per_s": 1000 / found["median_tpot_ms"],
        "median_tpot_ms": found["median_tpot_ms"],
        "output_throughput": found["output_throughput"],
        "total_output_tokens": found["total_output_tokens"],
    }


def _as_conversation(seed: int, number: int) -> str:
    """A prompt of the kind that sparkctl sends: what is answered is work for the engine too. The tool wants
    an answer beside it, which is never sent.
    """
    asked = decode_body("prose", 0, f"serving/{seed}/{number}")["messages"][0]["content"]
    return json.dumps({"conversations": [{"content": asked}, {"content": "An answer."}]}) + "\n"


def _stand_ins() -> dict[str, str]:
    """SGLang's client imports torchvision, which a CPU engine's environment has only as a stand-in."""
    if find_spec("torchvision") is not None:
        return {}
    package = find_spec("sgl_ext")
    assert package is not None and package.origin is not None
    return {"PYTHONPATH": str(Path(package.origin).parent / "stand_ins")}


def run_benchy(endpoint: Endpoint, arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / ".cache" / "llama-benchy"
        cache.mkdir(parents=True)
        name = hashlib.md5(BOOK_URL.encode(), usedforsecurity=False).hexdigest()
        (cache / f"{name}.txt").write_text(read_corpus().text(200_000, "book"))
        result = Path(folder) / "benchy.json"
        argv = [
            sys.executable, "-m", "llama_benchy", "--base-url", f"{endpoint.url}/v1",
            "--model", endpoint.model, "--tokenizer", arguments.tokenizer,
            "--pp", str(PROMPT_TOKENS), "--tg", str(arguments.tokens), *_extra_body(),
            "--runs", str(arguments.requests), "--concurrency", "1",
            "--skip-coherence", "--exit-on-first-fail", "--book-url", BOOK_URL, *WITHOUT_TOKEN_IDS,
            "--format", "json",
            "--save-result", str(result),
        ]  # fmt: skip
        said = _run(argv, HOME=folder)
        found = json.loads(result.read_text())
    rates = found["benchmarks"][0]["tg_throughput"]
    if rates is None:
        raise RuntimeError(f"llama-benchy saw no token in any chunk: {said[-1500:]}")
    values = rates["values"]
    return {"request_decode_tokens_per_s": statistics.median(values), "values": values}


def _extra_body() -> list[str]:
    return [
        word
        for key, value in SAME_PARAMETERS.items()
        for word in ("--extra-body", f"{key}={json.dumps(value)}")
    ]


def _run(argv: list[str], **extra: str) -> str:
    done = subprocess.run(
        argv, env={**os.environ, "HF_HUB_OFFLINE": "1", **extra}, capture_output=True, text=True, timeout=120
    )
    if done.returncode != 0:
        raise RuntimeError(f"{argv[2]} ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
    return done.stdout + done.stderr


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The order within a round turns, so that none always runs first. Round 0 is a warm-up."""
    endpoint = Endpoint(url=arguments.url.rstrip("/"), model=arguments.model)
    rounds: list[dict[str, Any]] = []
    for number in range(arguments.rounds + 1):
        found: dict[str, Any] = {"round": number}
        pairs = range(arguments.pairs)
        for pair in pairs:
            wave = make_wave(number * 100 + pair, STREAMS, arguments.tokens)
            clients = [("sparkctl", run_sparkctl), ("bare", run_bare)]
            for name, client in clients if pair % 2 == 0 else reversed(clients):
                found.setdefault(f"{name}_c{STREAMS}", []).append(client(endpoint, wave))
        if not arguments.overhead_only:
            _measure_decode(endpoint, arguments, number, found)
        rounds.append(found)
        print(json.dumps(found)[:600], flush=True)
    return rounds


def _measure_decode(
    endpoint: Endpoint, arguments: argparse.Namespace, number: int, found: dict[str, Any]
) -> None:
    """C1 of each tool; `server`: the engine's own tokens a second of a stream over the same requests, which
    tells a change of the machine from one of the tool.
    """

    def own() -> list[dict[str, float]]:
        waves = [make_wave(number * 100 + 50 + i, 1, arguments.tokens) for i in range(arguments.requests)]
        return [run_sparkctl(endpoint, wave) for wave in waves]

    tools: list[tuple[str, Callable[[], Any]]] = [
        ("sparkctl", own),
        ("serving", lambda: run_serving(endpoint, arguments, number)),
        ("benchy", lambda: run_benchy(endpoint, arguments)),
    ]
    turn = number % len(tools)
    for name, tool in tools[turn:] + tools[:turn]:
        seconds, tokens = server_latency(endpoint)
        found[f"{name}_c1"] = tool()
        later_s, later_tokens = server_latency(endpoint)
        found[f"{name}_c1_server"] = (later_tokens - tokens) / (later_s - seconds)


def server_latency(endpoint: Endpoint) -> tuple[float, float]:
    """Sum of the engine's inter-token latencies in seconds, and how many they are."""
    text = endpoint.get("/metrics").text
    sums = {
        part: sum(
            map(float, re.findall(rf"^sglang:inter_token_latency_seconds_{part}\{{.*\}} (\S+)$", text, re.M))
        )
        for part in ("sum", "count")
    }
    return sums["sum"], sums["count"]


def summarise(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    counted = [item for item in rounds if item["round"] > 0]

    def c16(name: str, key: str) -> list[float]:
        return [wave[key] for item in counted for wave in item[f"{name}_c{STREAMS}"]]

    summary: dict[str, Any] = {}
    if any("sparkctl_c16" in item for item in counted):
        summary["overhead_c16"] = _overhead(c16)
    summary.update(_agreement(counted))
    return summary


def _overhead(c16: Callable[[str, str], list[float]]) -> dict[str, Any]:
    rates = {name: statistics.median(c16(name, "tokens_per_s")) for name in ("sparkctl", "bare")}
    ratios = [
        own / bare
        for own, bare in zip(c16("sparkctl", "tokens_per_s"), c16("bare", "tokens_per_s"), strict=True)
    ]
    return {
        "tokens_per_s": rates,
        "cpu_us_per_token": {
            name: statistics.median(c16(name, "cpu_us_per_token")) for name in ("sparkctl", "bare")
        },
        "overhead_of_medians": 1 - rates["sparkctl"] / rates["bare"],
        "median_of_paired_overheads": 1 - statistics.median(ratios),
        "paired_ratio_range": [min(ratios), max(ratios)],
        "pairs": len(ratios),
        "bar": MOST_OVERHEAD,
        "reached": 1 - statistics.median(ratios) <= MOST_OVERHEAD,
    }


def _agreement(counted: list[dict[str, Any]]) -> dict[str, Any]:
    """`beside_server`: the same after each figure is divided by what the engine says of those requests."""
    summary: dict[str, Any] = {}
    measured = [item for item in counted if "sparkctl_c1" in item]
    per_round = {
        "sparkctl": [
            statistics.median(wave["request_decode_tokens_per_s"] for wave in item["sparkctl_c1"])
            for item in measured
        ],
        **{
            name: [item[f"{name}_c1"]["request_decode_tokens_per_s"] for item in measured]
            for name in ("serving", "benchy")
        },
    }
    if not measured:
        return summary
    shares = {
        name: statistics.median(
            rate / item[f"{name}_c1_server"] for rate, item in zip(rates, measured, strict=True)
        )
        for name, rates in per_round.items()
    }
    own = per_round["sparkctl"]
    for name in ("serving", "benchy"):
        others = per_round[name]
        difference = statistics.median(own) / statistics.median(others) - 1
        beside = shares["sparkctl"] / shares[name] - 1
        summary[f"decode_against_{name}"] = {
            "sparkctl": statistics.median(own), name: statistics.median(others), "difference": difference,
            "sparkctl_range": [min(own), max(own)], f"{name}_range": [min(others), max(others)],
            "rounds": len(own), "bar": MOST_DIFFERENCE, "reached": abs(difference) <= MOST_DIFFERENCE,
            "beside_server": {"sparkctl": shares["sparkctl"], name: shares[name], "difference": beside,
                              "reached": abs(beside) <= MOST_DIFFERENCE},
        }  # fmt: skip
    return summary


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load_generator", description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", default="tiny-qwen3")
    parser.add_argument("--tokenizer", required=True, help="directory of the served model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=4, help="C16 waves of each client in a round")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--requests", type=int, default=8, help="C1 requests of each tool in a round")
    parser.add_argument("--overhead-only", action="store_true")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    rounds = measure(arguments)
    packages = ("sparkctl", "sglang", "torch", "llama-benchy")
    machine = {
        "cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages}, "load_average_at_end": os.getloadavg(),
    }  # fmt: skip
    settings = {name: getattr(arguments, name) for name in ("rounds", "pairs", "tokens", "requests")}
    raw = {"machine": machine, "settings": settings, "rounds": rounds}
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "raw.json").write_text(json.dumps(raw, indent=1) + "\n")
    summary = {"machine": machine, "settings": settings, "figures": summarise(rounds)}
    (arguments.output / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary["figures"], indent=1))


if __name__ == "__main__":
    main()
