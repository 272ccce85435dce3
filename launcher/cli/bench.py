"""`sparkctl bench`: measure a running cluster, or any OpenAI endpoint, and keep every raw record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.cli.options import AcceptKeysOption, JsonOption, RunOption

if TYPE_CHECKING:
    from launcher.bench.endpoint import Endpoint
    from launcher.bench.settings import BenchSettings

_PROTOCOLS = "sparkctl-1 (own), sparkdash, lil, llama-benchy"


def bench(
    suite: Annotated[
        str | None,
        typer.Option(
            "--suite",
            "-s",
            metavar="A,B",
            help="decode, prefill, mixed, prefix, needle, soak; comma-separated. Default: decode.",
        ),
    ] = None,
    protocol: Annotated[
        str | None, typer.Option("--protocol", "-p", help=f"{_PROTOCOLS}. Figures never mix.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="New directory. Default: results/bench-..."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="DIR", help="Go on with an interrupted run; its settings hold."),
    ] = None,
    run: RunOption = None,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="An OpenAI endpoint instead of a cluster.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="With --url: the served model.")
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            "--api-key-file", metavar="FILE", help="With --url: its key. Or set SPARKCTL_BENCH_API_KEY."
        ),
    ] = None,
    concurrency: Annotated[
        str | None, typer.Option("--concurrency", "-c", metavar="N,N", help="Streams. Default: 1,2,4,8,16.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="Counted rounds after a discarded one. Default: 3.")
    ] = None,
    kinds: Annotated[
        str | None, typer.Option("--kinds", metavar="A,B", help="prose, code, structured, json, tools.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=2, help="Longest answer. Default: 256.")
    ] = None,
    force_length: Annotated[
        bool | None,
        typer.Option("--force-length", help="Answers of exactly --max-tokens: a protocol of its own."),
    ] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", min=0.0, help="Default: 0.")] = None,
    thinking: Annotated[
        bool | None, typer.Option("--thinking/--no-thinking", help="Default: as the server does.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Other prompts. Default: 1.")] = None,
    prefill_tokens: Annotated[
        str | None, typer.Option("--prefill-tokens", metavar="N,N", help="Default: 4k doubling to 1M.")
    ] = None,
    mixed_tokens: Annotated[
        str | None, typer.Option("--mixed-tokens", metavar="N,N", help="Default: 93335,150000.")
    ] = None,
    mixed_delay_s: Annotated[
        float | None, typer.Option("--mixed-delay-s", min=0.0, help="Default: 0.5.")
    ] = None,
    prefix_tokens: Annotated[
        str | None, typer.Option("--prefix-tokens", metavar="N,N", help="Default: 16384,150000.")
    ] = None,
    after_restart: Annotated[
        bool | None,
        typer.Option("--after-restart", help="With --resume: prefix once more, on the restarted server."),
    ] = None,
    needle_tokens: Annotated[
        str | None, typer.Option("--needle-tokens", metavar="N,N", help="Default: 4k,32k,128k,256k.")
    ] = None,
    soak_s: Annotated[float | None, typer.Option("--soak-s", min=1.0, help="Default: 3600.")] = None,
    soak_concurrency: Annotated[
        int | None, typer.Option("--soak-concurrency", min=1, help="Default: 8.")
    ] = None,
    window_s: Annotated[
        float | None, typer.Option("--window-s", min=1.0, help="lil: length of a window. Default: 30.")
    ] = None,
    expect: Annotated[
        str | None,
        typer.Option(
            "--expect", metavar="A,B", help="Refuse unless active: speculation, engram, prefix-cache."
        ),
    ] = None,
    allow: Annotated[
        str | None,
        typer.Option("--allow", metavar="A,B", help="Let output pass that is empty, garbled or repeated."),
    ] = None,
    step_bytes: Annotated[
        float | None,
        typer.Option("--step-bytes", min=1, help="Bytes a decode step must read, for the bound."),
    ] = None,
    bandwidth: Annotated[
        float | None, typer.Option("--bandwidth", min=1, help="Memory bandwidth in bytes/s, for the bound.")
    ] = None,
    first_token_timeout_s: Annotated[
        float | None, typer.Option("--first-token-timeout-s", min=0.1, help="Default: 2700.")
    ] = None,
    stall_timeout_s: Annotated[
        float | None, typer.Option("--stall-timeout-s", min=0.1, help="Between two chunks. Default: 300.")
    ] = None,
    request_timeout_s: Annotated[
        float | None, typer.Option("--request-timeout-s", min=0.1, help="Default: 3600.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", metavar="NAME|DIR", help="llama-benchy only.")
    ] = None,
    accept_new_host_keys: AcceptKeysOption = False,
    json: JsonOption = False,
) -> None:
    """Measure what the cluster delivers. One run is one directory with every raw record.

    \b
    sparkctl bench                                          decode, five kinds of prompts, C1 to C16
    sparkctl bench --suite prefill,prefix                   long prompts, cold and warm
    sparkctl bench --url http://HOST:PORT --model NAME      any OpenAI endpoint
    sparkctl bench --resume results/bench-...               after Ctrl-C, a crash or a failed wave

    Tokens are counted by the server's usage, the first round is discarded, and prompts are unique real text.
    It stops (exit status 8) when output is empty, garbled or repeated, when a cold prompt was cached, or when
    a figure exceeds its bound; the raw records stay. docs/benchmarking.md says what each figure means.
    """
    from launcher.bench.run_bench import output_directory
    from launcher.bench.run_folder import RunFolder
    from launcher.bench.run_session import run_session
    from launcher.connect import SshOptions
    from launcher.errors import UsageError

    given = {
        "suites": _words(suite), "protocol": protocol, "concurrency": _numbers("--concurrency", concurrency),
        "rounds": rounds, "kinds": _words(kinds), "max_tokens": max_tokens, "forced_length": force_length,
        "temperature": temperature, "thinking": thinking, "seed": seed,
        "prefill_tokens": _numbers("--prefill-tokens", prefill_tokens),
        "mixed_tokens": _numbers("--mixed-tokens", mixed_tokens), "mixed_delay_s": mixed_delay_s,
        "prefix_tokens": _numbers("--prefix-tokens", prefix_tokens),
        "needle_tokens": _numbers("--needle-tokens", needle_tokens), "soak_s": soak_s,
        "soak_concurrency": soak_concurrency, "window_s": window_s, "expect": _words(expect),
        "allow": _words(allow), "step_bytes": step_bytes, "bandwidth_bytes_per_s": bandwidth,
        "first_token_timeout_s": first_token_timeout_s, "stall_timeout_s": stall_timeout_s,
        "request_timeout_s": request_timeout_s, "tokenizer": tokenizer,
    }  # fmt: skip
    asked = {name: value for name, value in given.items() if value is not None}
    if after_restart and resume is None:
        raise UsageError("--after-restart must stand beside --resume DIR", hint="sparkctl bench --help")
    # What was asked comes first: a word that is wrong is wrong on every cluster, and without one.
    if resume is not None:
        if asked or output is not None:
            raise UsageError(
                f"--resume must stand alone but for the endpoint and --after-restart, got {', '.join(asked)}",
                hint=f"sparkctl bench --resume {resume}",
            )
        folder = RunFolder.open(resume)
        endpoint = _endpoint(run, url, model, api_key_file)
        if after_restart:
            from dataclasses import replace

            settings = folder.settings.model_copy(update={"after_restart": True})
            folder = replace(folder, settings=settings)
    else:
        settings = _settings(asked)
        endpoint = _endpoint(run, url, model, api_key_file)
        recipe = endpoint.record.plan.recipe if endpoint.record else "endpoint"
        name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in Path(recipe).stem)
        folder = RunFolder.create(output_directory(output, settings.protocol_label, name), settings)
    run_session(folder, endpoint, SshOptions(accept_new_host_keys=accept_new_host_keys), as_json=json)


def _endpoint(run: str | None, url: str | None, model: str | None, key_file: Path | None) -> Endpoint:
    from launcher.bench.endpoint import cluster_endpoint, given_endpoint
    from launcher.errors import UsageError

    if url is None:
        if model is not None or key_file is not None:
            raise UsageError(
                "--model and --api-key-file must stand beside --url", hint="sparkctl bench --help"
            )
        return cluster_endpoint(run)
    if run is not None:
        raise UsageError("--url must stand without --run, got both")
    return given_endpoint(url, model, key_file)


def _settings(asked: dict[str, Any]) -> BenchSettings:
    """Raises UsageError with the option that is wrong."""
    from pydantic import ValidationError

    from launcher.bench.settings import FEATURES, KINDS, OUTPUT_PROBLEMS, SUITES, BenchSettings
    from launcher.errors import UsageError

    for option, known in (
        ("suites", SUITES),
        ("kinds", KINDS),
        ("expect", FEATURES),
        ("allow", OUTPUT_PROBLEMS),
    ):
        wrong = [word for word in asked.get(option, ()) if word not in known]
        if wrong:
            raise UsageError(
                f"--{option.removesuffix('s') if option == 'suites' else option} must be of"
                f" {', '.join(known)}, got {wrong[0][:60]!r}"
            )
    protocol = asked.get("protocol", "sparkctl-1")
    defaults: dict[str, Any] = {}
    if protocol == "lil":
        defaults = {
            "concurrency": (1, 2, 4, 8, 16, 32, 48),
            "temperature": 1.0,
            "suites": ("decode", "prefill"),
        }
    foreign = [name for name in asked.get("suites", ()) if name not in ("decode", "prefill")]
    if protocol != "sparkctl-1" and foreign:
        raise UsageError(f"--protocol {protocol} must have the suites decode or prefill, got {foreign[0]}")
    try:
        return BenchSettings.model_validate(defaults | asked)
    except ValidationError as error:
        first = error.errors()[0]
        option = "--" + str(first["loc"][0]).replace("_", "-")
        raise UsageError(f"{option}: {first['msg']}, got {str(first['input'])[:60]!r}") from error


def _words(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(word.strip() for word in text.split(",") if word.strip())


def _numbers(option: str, text: str | None) -> tuple[int, ...] | None:
    """'4k,1M' too: k is 1024, M its square."""
    from launcher.errors import UsageError

    if text is None:
        return None
    found = []
    for word in _words(text) or ():
        factor = {"k": 1024, "m": 1024**2}.get(word[-1].lower(), 1)
        digits = word if factor == 1 else word[:-1]
        if not digits.isdecimal() or int(digits) < 1:
            raise UsageError(f"{option} must be numbers of at least 1, got {word[:40]!r}")
        found.append(int(digits) * factor)
    if not found:
        raise UsageError(f"{option} must be numbers, got none")
    return tuple(dict.fromkeys(found))
