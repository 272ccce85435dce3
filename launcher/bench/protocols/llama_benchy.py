"""llama-benchy, the tool itself (PyPI, MIT), run against the endpoint; its files come into the run's
directory.

It keeps no raw record of a request, so requests.jsonl stays empty: its figures stand in its own files only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from launcher.bench.describe_run import describe_run
from launcher.bench.endpoint import Endpoint, ask_server
from launcher.bench.errors import BenchInvalid, BenchRefused
from launcher.bench.node_samples import MeasuredNodes
from launcher.bench.run_folder import RunFolder
from launcher.bench.settings import BenchSettings
from launcher.results.finish_run import finish_run
from launcher.results.manifest import Manifest

FALLBACK = "Falling back to 'gpt2'"
JSON, PROGRESS = "llama-benchy.json", "llama-benchy.jsonl"
# The tool takes its key on the command line, where every user of the machine reads it. This puts it there
# from the environment, inside the process.
_RUN = (
    "import os, sys; key = os.environ.pop('SPARKCTL_BENCH_API_KEY', '');"
    " sys.argv += ['--api-key', key] if key else [];"
    " from llama_benchy.__main__ import main; sys.exit(main())"
)


# The tool asks for token ids, which SGLang 0.5.23 refuses in a stream (HTTP 400); it then goes by usage.
WITHOUT_TOKEN_IDS = ("--extra-body", "return_token_ids=false")


def benchy_argv(settings: BenchSettings, endpoint: Endpoint, tokenizer: str, *, is_sglang: bool) -> list[str]:
    """Everything but the key. Prompt lengths: --prefill-tokens; answer: --max-tokens."""
    words = [
        "--base-url", f"{endpoint.url}/v1", "--model", endpoint.model, "--tokenizer", tokenizer,
        "--pp", *map(str, settings.prefill_tokens), "--tg", str(settings.max_tokens),
        "--runs", str(settings.rounds), "--concurrency", *map(str, settings.concurrency),
        "--skip-coherence", "--exit-on-first-fail", *(WITHOUT_TOKEN_IDS if is_sglang else ()),
    ]  # fmt: skip
    return [*words, "--exact-tg"] if settings.forced_length else words


def run_llama_benchy(folder: RunFolder, endpoint: Endpoint, *, tell: Callable[[str], None]) -> Manifest:
    """Blocks until the tool has ended. Raises BenchRefused when it is not installed."""
    settings = folder.settings
    try:
        release = version("llama-benchy")
    except PackageNotFoundError:
        raise BenchRefused(
            "llama-benchy must be installed beside sparkctl, it is not",
            hint="pip install 'sparkctl[llama-benchy]'",
        ) from None
    facts = ask_server(endpoint)
    folder.begin_on(None)
    tokenizer = settings.tokenizer or _tokenizer(endpoint)
    environment = {**os.environ, "SPARKCTL_BENCH_API_KEY": endpoint.key or ""}
    argv = [
        sys.executable, "-c", _RUN,
        *benchy_argv(settings, endpoint, tokenizer, is_sglang=facts.is_sglang), "--format", "json",
        "--save-result", str(folder.path / JSON), "--emit-progress", str(folder.path / PROGRESS),
    ]  # fmt: skip
    tell(f"llama-benchy {release} runs; its progress: {folder.path / PROGRESS}")
    done = subprocess.run(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0 or not (folder.path / JSON).exists():
        raise BenchInvalid(
            f"llama-benchy must end well, got exit status {done.returncode}: {done.stdout[-600:].strip()}",
            hint="sparkctl status; its tokenizer: --tokenizer NAME|DIR",
        )
    if FALLBACK in done.stdout:
        raise BenchInvalid(
            f"llama-benchy must count with the model's tokenizer, got gpt2's: {tokenizer!r} cannot be read",
            hint="--tokenizer DIR, the model's directory",
        )
    found = json.loads((folder.path / JSON).read_text())
    empty = [
        item for item in found.get("benchmarks", ()) if not (item.get("tg_throughput") or {}).get("mean")
    ]
    if empty or not found.get("benchmarks"):
        raise BenchInvalid(
            "llama-benchy must report a decode figure for every test, got none for some:"
            f" {done.stdout[-600:].strip()}",
            hint="sparkctl logs; answers of one token have no decode rate: --max-tokens 32",
        )
    facts_of_run = describe_run(
        folder, endpoint, facts, MeasuredNodes(), (),
        ("llama-benchy keeps no raw records; its figures: " + JSON,),
        revision=f"llama-benchy {release}", ended_unix=time.time(),
    )  # fmt: skip
    return finish_run(folder.path, facts_of_run)


def _tokenizer(endpoint: Endpoint) -> str:
    """The model's own directory, where the cluster runs on this machine."""
    plan = endpoint.record.plan if endpoint.record else None
    if plan is not None and plan.head.node.connection == "local":
        return plan.head.model_path
    return endpoint.model
