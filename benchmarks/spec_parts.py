"""What gpu_spec.py asks of its engines: speed in turn, greedy equality under mixed traffic, sampling."""

import argparse
import functools
import json
import statistics
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from chi_square import compare_counts  # beside this file, as the next
from gpu_engram_phases import Server, flush, generate, get, make_prompt

from benchmarks.spec_equality import make_stages, prompt

PLAIN, ALWAYS = "plain", "always"
# Of the serial engine's log-probabilities, best over second best. bf16 logits from 8 to 16 are 1/16 apart,
# and a batch of another size adds up in another order: below this the engine does not repeat its own choice.
TIE = 0.25
LEAST_P = 1e-4  # of some 40 comparisons: a false alarm in one run of 250


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """end: when time.monotonic() says that the part is out of time."""

    end: float

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.end

    @property
    def left_s(self) -> float:
        return max(1.0, self.end - time.monotonic())

    def check(self, what: str) -> None:
        if self.is_over:
            raise TimeoutError(f"{what} is out of time")


def wish(value: object | None) -> dict[str, Any]:
    return {} if value is None else {"custom_params": {"spec": value}}


# ---- timing ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """An engine, and what its requests wish for."""

    name: str
    server: Server
    spec: object | None = None
    rounds: int = 10_000


def list_ways(servers: dict[str, Server]) -> list[Way]:
    """Every engine as it is, but those that decide without a table; and where time goes: no draft at all, and
    whole blocks, under the plugin."""
    ways = [
        Way(name=name, server=server)
        for name, server in servers.items()
        if name in (PLAIN, ALWAYS) or name.startswith("auto-")
    ]
    for name, server in servers.items():
        if name.startswith("auto-"):
            ways += [
                Way(name=f"{name}, off", server=server, spec="off", rounds=2),
                Way(name=f"{name}, width 5", server=server, spec=5, rounds=2),
            ]
    return ways


def run_timing(servers: dict[str, Server], options: argparse.Namespace, limits: Limits) -> dict[str, Any]:
    """New prompts each round: the plugin starts from what other requests taught, not from their own past."""
    ways = list_ways(servers)
    runs: list[dict[str, Any]] = []
    errors: dict[str, str] = {}  # by engine: it is asked no more, the others go on
    before = {name: read_spec(server) for name, server in servers.items()}
    for round_idx in range(options.rounds):
        for batch in options.batches:
            todo = [way for way in ways if round_idx < way.rounds]
            for way in todo[::-1] if round_idx % 2 else todo:
                if limits.is_over:
                    break
                if way.server.side in errors:
                    continue
                try:
                    runs.append({"round": round_idx} | time_decode(way, batch, round_idx, options))
                except Exception as error:  # noqa: BLE001, recorded
                    errors[way.server.side] = f"{way.name}, batch {batch}: {error!r}"
    metrics = {
        name: change(before[name], read_spec(server))
        for name, server in servers.items()
        if name not in errors
    }
    return {
        "summary": summarize(runs), "runs": runs, "metrics": metrics, "errors": errors,
        "cut": limits.is_over,
    }  # fmt: skip


def time_decode(way: Way, batch: int, round_idx: int, options: argparse.Namespace) -> dict[str, Any]:
    prompts = [make_prompt(7000 + 100 * round_idx + 20 * batch + idx, 64) for idx in range(batch)]
    generate(way.server, prompts, 1)  # prompts are in the prefix cache now; one token needs no decode step
    begin = time.perf_counter()
    replies = ask_all(way.server, prompts, options.decode_tokens, way.spec)
    seconds = time.perf_counter() - begin
    steps = sum(reply["meta_info"].get("spec_verify_ct", 0) for reply in replies)
    tokens = sum(len(reply["output_ids"]) for reply in replies)
    return {
        "way": way.name, "batch": batch, "seconds": seconds, "tokens": tokens, "verify_steps": steps,
        "tokens_per_s": tokens / seconds,
    }  # fmt: skip


def ask_all(server: Server, prompts: Sequence[list[int]], tokens: int, spec: object | None) -> list[Any]:
    sampling = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True} | wish(spec)
    return post(server, {"input_ids": list(prompts), "sampling_params": sampling}, 60)


def summarize(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By batch and way: median tokens/s, and medians of its ratios to plain and to always in one round."""
    table: dict[str, Any] = {}
    speed = {(run["batch"], run["way"], run["round"]): run["tokens_per_s"] for run in runs}
    for batch, way in sorted({(run["batch"], run["way"]) for run in runs}):
        own = {key[2]: value for key, value in speed.items() if key[:2] == (batch, way)}
        row: dict[str, Any] = {"tokens_per_s": statistics.median(own.values()), "rounds": len(own)}
        for base in (PLAIN, ALWAYS):
            ratios = [
                value / speed[batch, base, idx] for idx, value in own.items() if (batch, base, idx) in speed
            ]
            row[f"over_{base}"] = statistics.median(ratios) if ratios else None
        mine = [run for run in runs if (run["batch"], run["way"]) == (batch, way)]
        steps = sum(run["verify_steps"] for run in mine)
        row["tokens_per_step"] = sum(run["tokens"] for run in mine) / steps if steps else None
        table.setdefault(str(batch), {})[way] = row
    return table


def read_spec(server: Server) -> dict[str, float]:
    if "--enable-metrics" not in server.command:
        return {}
    lines = (line.rpartition(" ") for line in get(server, "/metrics").splitlines())
    return {name: float(value) for name, _, value in lines if name.startswith("sparkctl_spec_")}


def change(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {
        name: value - before.get(name, 0.0) for name, value in after.items() if value != before.get(name, 0.0)
    }


# ---- equality ----------------------------------------------------------------------------------------------
def run_equality(servers: dict[str, Server], options: argparse.Namespace, limits: Limits) -> dict[str, Any]:
    """Reference: plain, one request at a time. Then plain under the same traffic as the others, to see what a
    batch alone changes, and each other engine."""
    stages = scale_stages(make_stages(), options.length_scale)
    plain = servers[PLAIN]
    flush(plain)
    serial = ask_serially(plain, stages, limits)
    with ThreadPoolExecutor(len(servers)) as pool:
        futures = {
            name: pool.submit(ask_mixed, server, stages, serial, limits) for name, server in servers.items()
        }
        found: dict[str, Any] = {}
        for name, future in futures.items():
            try:
                found[name] = compare(serial, future.result())
            except Exception as error:  # noqa: BLE001, recorded: the other engines go on
                found[name] = {"error": repr(error)}
    summary = {
        name: {key: value for key, value in one.items() if key != "rows"} for name, one in found.items()
    }
    return {"summary": summary, "prompts": len(serial), "tie": TIE, "serial": serial, "sides": found}


def scale_stages(stages: list[list[dict[str, Any]]], scale: int) -> list[list[dict[str, Any]]]:
    """Prompts of several chunks become longer with the chunk; equal ones stay equal."""
    return [
        [
            request | {"ids": prompt(len(request["ids"]) * scale, len(request["ids"]))}
            if request["name"].startswith(("chunked", "hit"))
            else request
            for request in stage
        ]
        for stage in stages
    ]


def ask_serially(server: Server, stages: list[list[dict[str, Any]]], limits: Limits) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for request in [request for stage in stages for request in stage]:
        limits.check("serial replies")
        ids = list(request["ids"])
        if "after" in request:
            before = answers[request["after"]]
            ids = [*before["ids"], *before["tokens"], *ids]
        (reply,) = generate(
            server, [ids], request["new"], timeout_s=limits.left_s, return_logprob=True, top_logprobs_num=2
        )
        tops = reply["meta_info"]["output_top_logprobs"]
        margins = [round(top[0][0] - top[1][0], 4) for top in tops]
        answers[request["name"]] = {"ids": ids, "tokens": reply["output_ids"], "margins": margins}
    return answers


def ask_mixed(
    server: Server, stages: list[list[dict[str, Any]]], serial: dict[str, Any], limits: Limits
) -> dict[str, Any]:
    """All requests of a stage at once. Prompts are those of the serial replies, whatever was replied here."""
    takes_wishes = "SPARKCTL_SPEC" in server.environment
    flush(server)
    answers: dict[str, Any] = {}

    def ask(request: dict[str, Any]) -> dict[str, Any]:
        spec = request["spec"] if takes_wishes else None
        sampling = {"temperature": 0.0, "max_new_tokens": request["new"], "ignore_eos": True} | wish(spec)
        body = {"input_ids": serial[request["name"]]["ids"], "sampling_params": sampling}
        if "abort_after" in request:
            return ask_and_abort(server, body, request["abort_after"], limits)
        reply = post(server, body, limits.left_s)
        meta = reply["meta_info"]
        return {
            "tokens": reply["output_ids"], "cached": meta["cached_tokens"],
            "verify_steps": meta.get("spec_verify_ct", 0),
        }  # fmt: skip

    for stage in stages:
        limits.check("mixed replies")
        with ThreadPoolExecutor(len(stage)) as pool:
            replies = list(pool.map(ask, stage))
        answers |= {request["name"]: reply for request, reply in zip(stage, replies, strict=True)}
    return answers


def ask_and_abort(server: Server, body: dict[str, Any], after: int, limits: Limits) -> dict[str, Any]:
    rid = f"aborted-{threading.get_ident()}-{time.monotonic_ns()}"
    tokens: list[int] = []
    asked = False
    with open_post(server, "/generate", body | {"stream": True, "rid": rid}, limits.left_s) as reply:
        for line in reply:
            text = line.decode().strip()
            if not text.startswith("data:") or text == "data: [DONE]":
                continue
            tokens = json.loads(text.removeprefix("data:"))["output_ids"]
            if len(tokens) >= after and not asked:
                asked = True
                open_post(server, "/abort_request", {"rid": rid}, 30).close()
    return {"tokens": tokens, "cached": 0, "verify_steps": 0, "aborted": True}


def compare(serial: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    rows = []
    for name, one in serial.items():
        seen = other[name]["tokens"]
        wanted = one["tokens"]
        if other[name].get("aborted"):  # an abort ends where it finds the request
            wanted, seen = wanted[: len(seen)], seen[: len(wanted)]
        at = next(
            (idx for idx, pair in enumerate(zip(wanted, seen, strict=False)) if pair[0] != pair[1]), None
        )
        if at is None and len(wanted) != len(seen):
            at = min(len(wanted), len(seen))
        if at is not None:
            margin = one["margins"][at] if at < len(one["margins"]) else None
            rows.append({"name": name, "first_difference": at, "serial_margin": margin, "tokens": seen})
    beyond = [row["name"] for row in rows if row["serial_margin"] is None or row["serial_margin"] > TIE]
    steps = sum(answer["verify_steps"] for answer in other.values())
    drafted = sum(len(answer["tokens"]) for answer in other.values() if answer["verify_steps"])
    return {
        "equal": len(serial) - len(rows), "of": len(serial), "different_beyond_ties": beyond,
        "margins_of_differences": [row["serial_margin"] for row in rows],
        "from_the_prefix_cache": sum(bool(answer["cached"]) for answer in other.values()),
        "tokens_per_step": drafted / steps if steps else None, "rows": rows,
    }  # fmt: skip


# ---- sampling ----------------------------------------------------------------------------------------------
PLACES, TOP_K, TEMPERATURE = 4, 4, 1.5


def run_sampling(servers: dict[str, Server], options: argparse.Namespace, limits: Limits) -> dict[str, Any]:
    """Replies of 4 tokens to one prompt, each token of the 4 likeliest. The first comes from the prefill, the
    others from verify steps. Widths are fixed too, so that steps draft also where that does not pay."""
    asked: list[tuple[str, Server, object | None]] = [
        (name, server, None) for name, server in servers.items() if not name.startswith("auto-")
    ]
    for name, server in servers.items():
        if name.startswith("auto-"):
            asked += [(f"{name}, {spec}", server, spec) for spec in (2, 5, "auto")]
    by_server: dict[int, list[Callable[[], None]]] = {}
    found: dict[str, dict[str, Any]] = {}

    def ask(name: str, server: Server, spec: object | None) -> None:
        try:
            found[name] = draw(server, spec, options, limits)
        except Exception as error:  # noqa: BLE001, recorded: the other engines go on
            found[name] = {"replies": [], "tokens_per_step": None, "error": repr(error)}

    for one in [*asked, (f"{PLAIN}, again", servers[PLAIN], None)]:
        by_server.setdefault(one[1].port, []).append(functools.partial(ask, *one))
    with ThreadPoolExecutor(len(by_server)) as pool:
        list(pool.map(lambda jobs: [job() for job in jobs], by_server.values()))
    base = found[PLAIN]["replies"]
    tests = {
        name: {
            "replies": len(one["replies"]), "tokens_per_step": one["tokens_per_step"],
            "p": compare_places(base, one["replies"]) if base and one["replies"] else {},
        } | ({"error": one["error"]} if "error" in one else {})
        for name, one in found.items() if name != PLAIN or not one["replies"]
    }  # fmt: skip
    counts = {name: dict(Counter(map(str, one["replies"]))) for name, one in found.items()}
    return {"summary": tests, "least_p": LEAST_P, "wanted": options.samples, "counts": counts}


def draw(server: Server, spec: object | None, options: argparse.Namespace, limits: Limits) -> dict[str, Any]:
    sampling = {
        "temperature": TEMPERATURE, "top_k": TOP_K, "max_new_tokens": PLACES, "ignore_eos": True,
    } | wish(spec)  # fmt: skip
    prompts = [make_prompt(4242, 24)] * options.sample_batch
    replies: list[tuple[int, ...]] = []
    steps = 0
    while len(replies) < options.samples and not limits.is_over:
        for reply in post(server, {"input_ids": prompts, "sampling_params": sampling}, limits.left_s):
            replies.append(tuple(reply["output_ids"]))
            steps += reply["meta_info"].get("spec_verify_ct", 0)
    decoded = (PLACES - 1) * len(replies)
    return {"replies": replies, "tokens_per_step": decoded / steps if steps else None}


def compare_places(one: Sequence[tuple[int, ...]], other: Sequence[tuple[int, ...]]) -> dict[str, float]:
    """p of both having one distribution: each place, each pair of neighbours, the whole reply."""
    parts = {f"place {place + 1}": slice(place, place + 1) for place in range(PLACES)}
    parts |= {f"places {place + 1} and {place + 2}": slice(place, place + 2) for place in range(PLACES - 1)}
    parts |= {"the reply": slice(0, PLACES)}
    return {
        name: compare_counts(
            Counter(reply[part] for reply in one), Counter(reply[part] for reply in other)
        )
        for name, part in parts.items()
    }  # fmt: skip


# ---- bars --------------------------------------------------------------------------------------------------
def find_missed(parts: dict[str, Any], draft: str, verify: Sequence[str]) -> list[str]:
    """What failed or fell short of what the issue asks for, in words."""
    missed = [
        f"{name}: {part.get('skipped') or 'failed'}"
        for name, part in parts.items()
        if "error" in part or "skipped" in part
    ]
    missed += [f"tune: {name} failed" for name, one in parts.get("tune", {}).items() if _failed(one)]
    base, least = (PLAIN, 0.95) if draft == "random" else (ALWAYS, 0.97)
    for batch, ways in parts.get("timing", {}).get("summary", {}).items():
        for name in (f"auto-{mode}" for mode in verify):
            ratio = ways.get(name, {}).get(f"over_{base}")
            if ratio is None or ratio < least:
                said = "no figure" if ratio is None else f"{ratio:.3f}"
                missed.append(f"timing: {name} at batch {batch}: {said} of {base}, below {least}")
    for name, one in parts.get("equality", {}).get("summary", {}).items():
        if _failed(one) or (one["different_beyond_ties"] and name != PLAIN):
            missed.append(f"equality: {name}: {one.get('error') or one['different_beyond_ties']}")
    missed += [f"timing: {error}" for error in parts.get("timing", {}).get("errors", {}).values()]
    for name, one in parts.get("sampling", {}).get("summary", {}).items():
        if one["replies"] < parts["sampling"]["wanted"]:
            seen = f"{one['replies']} of {parts['sampling']['wanted']} replies"
            missed.append(f"sampling: {name}: {seen} {one.get('error', '')}".rstrip())
        worst = min(one["p"].values(), default=1.0)
        if worst < LEAST_P:
            missed.append(f"sampling: {name}: p {worst:.2g}, below {LEAST_P}")
    return missed


def _failed(one: object) -> bool:
    return isinstance(one, dict) and "error" in one


# ---- HTTP --------------------------------------------------------------------------------------------------
def open_post(server: Server, path: str, body: dict[str, Any], timeout_s: float) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}{path}",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    return urllib.request.urlopen(request, timeout=timeout_s)


def post(server: Server, body: dict[str, Any], timeout_s: float) -> Any:
    with open_post(server, "/generate", body, timeout_s) as reply:
        return json.loads(reply.read())
