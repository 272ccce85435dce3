"""Where to send requests: a cluster that sparkctl started, or any OpenAI endpoint.
The key never leaves here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from launcher.bench.errors import BenchUnanswered
from launcher.errors import UsageError
from launcher.run_record import RunRecord, RunRecords

KEY_VARIABLE = "SPARKCTL_BENCH_API_KEY"
ASK_TIMEOUT_S = 15.0
# /server_info repeats the key and the node's addresses; a result keeps what changes the speed.
ENGINE_ARGS = (
    "tp_size", "ep_size", "dp_size", "nnodes", "dtype", "quantization", "kv_cache_dtype", "context_length",
    "max_total_num_tokens", "max_running_requests", "chunked_prefill_size", "max_prefill_tokens",
    "mem_fraction_static", "attention_backend", "prefill_attention_backend", "decode_attention_backend",
    "sampling_backend", "grammar_backend", "moe_runner_backend", "speculative_algorithm",
    "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens", "page_size",
    "disable_radix_cache", "disable_cuda_graph", "cuda_graph_max_bs_decode", "schedule_policy",
    "schedule_conservativeness", "stream_interval", "prefill_decode_interval", "enable_cache_report",
    "enable_metrics", "tool_call_parser", "reasoning_parser", "random_seed", "device",
    "disable_overlap_schedule",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """`url` ends before /v1. `key` is not shown by repr."""

    url: str
    model: str
    key: str | None = field(default=None, repr=False)
    record: RunRecord | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def get(self, path: str, *, method: str = "GET") -> httpx.Response:
        """Raises BenchUnanswered when nothing answers."""
        try:
            return httpx.request(method, self.url + path, headers=self.headers, timeout=ASK_TIMEOUT_S)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise BenchUnanswered(
                f"{self.url} must answer {method} {path}, got {type(error).__name__}: {error}",
                hint="sparkctl status; a remote API bound to loopback needs the tunnel that"
                " `sparkctl up` prints",
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What the server says of itself. An endpoint that is no SGLang has no `engine_args` and no version."""

    context_tokens: int | None
    version: str | None
    engine_args: dict[str, Any]
    is_sglang: bool


def cluster_endpoint(run_id: str | None) -> Endpoint:
    """The API of the named run, or of the only open one. Raises NoSuchRun or UsageError."""
    records = RunRecords()
    record = records.choose(run_id)
    api = record.plan.api
    return Endpoint(url=api.url, model=api.served_name, key=records.read_key(record.run_id), record=record)


def given_endpoint(url: str, model: str | None, key_file: Path | None) -> Endpoint:
    """`url` with or without /v1. The key: from the file, else from SPARKCTL_BENCH_API_KEY."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--url must be http://HOST:PORT or https://HOST, got {url[:120]!r}")
    if parts.username or parts.password:
        raise UsageError("--url must hold no user or password", hint=f"--api-key-file FILE or {KEY_VARIABLE}")
    bare = url.rstrip("/").removesuffix("/v1")
    key = _read_key(key_file) if key_file is not None else os.environ.get(KEY_VARIABLE)
    endpoint = Endpoint(url=bare, model=model or "", key=key)
    if model:
        return endpoint
    served = _served(endpoint)
    if len(served) != 1:
        names = ", ".join(str(item.get("id")) for item in served[:5]) or "none"
        raise UsageError(f"--model must name one of the served models: {names}")
    return Endpoint(url=bare, model=str(served[0]["id"]), key=key)


def _read_key(path: Path) -> str:
    try:
        key = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--api-key-file must be a readable file, got: {error}") from error
    if not key or not key.isprintable() or " " in key:
        raise UsageError(f"--api-key-file must hold one key, got none in {path}")
    return key


def _served(endpoint: Endpoint) -> list[dict[str, Any]]:
    reply = endpoint.get("/v1/models")
    try:
        if reply.status_code != 200:
            raise ValueError(f"HTTP {reply.status_code}: {reply.text[:200]}")
        return list(reply.json()["data"])
    except (ValueError, KeyError, TypeError) as error:
        raise BenchUnanswered(
            f"{endpoint.url} must list its models at /v1/models, got {error}",
            hint=f"401 or 403: give the key with --api-key-file FILE or {KEY_VARIABLE}",
        ) from error


def ask_server(endpoint: Endpoint) -> ServerFacts:
    """Raises BenchUnanswered, or UsageError when the model is not served."""
    served = _served(endpoint)
    own = next((item for item in served if item.get("id") == endpoint.model), None)
    if own is None:
        names = ", ".join(str(item.get("id")) for item in served[:5])
        raise UsageError(f"the model must be one of those served ({names}), got {endpoint.model!r}")
    context = own.get("max_model_len") or own.get("context_length")
    info: dict[str, Any] = {}
    reply = endpoint.get("/server_info")
    if reply.status_code == 200:
        try:
            value = reply.json()
            info = value if isinstance(value, dict) else {}
        except ValueError:
            info = {}  # some other server's page at that path
    is_sglang = "tp_size" in info
    # The scheduler's own limit is a few tokens below the context.
    limit = info.get("max_req_input_len") if is_sglang else None
    return ServerFacts(
        context_tokens=limit or context,
        version=info.get("version") if is_sglang else None,
        engine_args={name: info[name] for name in ENGINE_ARGS if name in info} if is_sglang else {},
        is_sglang=is_sglang,
    )


def flush_cache(endpoint: Endpoint) -> bool:
    """Empties SGLang's prefix cache. False where the server has no such request."""
    return endpoint.get("/flush_cache", method="POST").status_code == 200
