"""Many engines at once on a GPU machine: equality in all modes, speed, memory and start times, read errors.

    python benchmarks/gpu_engram_session.py matrix --work W --out O [--tp 2]   greedy equality, ours and stock
    python benchmarks/gpu_engram_session.py timing --work W --out O [--late-work V]
    python benchmarks/gpu_engram_session.py starts --work W --out O            start times, memory, read error

The checkpoints come from gpu_engram.py build. Raw JSON is written after every server and phase, so a run that
is cut off leaves what it had.
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpu_engram import (  # beside this file, as the next two
    add_arguments,
    await_ready,
    describe,
    first_words,
    make_server,
    record,
    run_phase,
    start,
    stop,
)
from gpu_engram_phases import (
    Server,
    ask_greedy,
    equality_prompts,
    first_difference,
    flush,
    generate,
    make_prompt,
)


def end(servers: list[Server]) -> None:
    for server in servers:
        stop(server)


def prepare(server: Server, gpus: str) -> Server:
    server.environment["CUDA_VISIBLE_DEVICES"] = gpus
    return server


# ---- matrix ------------------------------------------------------------------------------------------------
def matrix(options: argparse.Namespace) -> None:
    """Each server is asked one prompt at a time, so that batches are the same everywhere."""
    pairs: list[tuple[Server, Server]] = []
    port = iter(range(options.first_port, options.first_port + 3000, 37))
    for spec_idx, spec in enumerate(options.spec):
        gpus = ",".join(options.gpus) if options.tp > 1 else options.gpus[spec_idx % len(options.gpus)]
        for graph in options.graph:
            stock, ours = (
                prepare(make_server(options, side, spec, graph, next(port)), gpus)
                for side in ("stock", "ours")
            )
            pairs.append((stock, ours))
    servers = [server for pair in pairs for server in pair]
    control = None
    if options.control:
        control = prepare(make_server(options, "control", "plain", "full", next(port)), options.gpus[-1])
        servers.append(control)
    turn = threading.Semaphore(options.at_once)
    result: dict[str, Any] = {"pairs": {}, "servers": {}, "repeatability": {}}
    lock = threading.Lock()

    def save() -> None:
        with lock:
            record(options.out, options.label, result)

    def serve_one(server: Server) -> list[dict[str, Any]]:
        await_ready(server, options.start_limit_s)
        print(server.name, f"ready {server.ready_s:.1f} s" if not server.error else server.error, flush=True)
        with turn:
            first_words([server], options)
            result["servers"][server.name] = describe(server)
            if server.error or server.side == "control":
                return []
            return ask_all(server, options, result, save)

    def run_pair(pair: tuple[Server, Server]) -> None:
        try:
            with ThreadPoolExecutor(2) as pool:
                stock, ours = pool.map(serve_one, pair)
            key = f"{pair[0].spec}-{pair[0].graph}"
            if any(server.error for server in pair):
                result["pairs"][key] = {"error": [server.error for server in pair]}
            else:
                with turn:
                    result["pairs"][key] = compare(pair, stock, ours, options)
        except Exception:  # noqa: BLE001, recorded: the other pairs go on
            result["pairs"][f"{pair[0].spec}-{pair[0].graph}"] = {"error": traceback.format_exc()}
        short = {k: v for k, v in result["pairs"][key_of(pair)].items() if k != "rows"}
        print("EQUALITY", key_of(pair), short, flush=True)
        save()

    def run_control() -> None:
        assert control is not None
        try:
            serve_one(control)
            compare_repeats(control, pairs[0][0], result)
        except Exception:  # noqa: BLE001, recorded
            result["repeatability"]["error"] = traceback.format_exc()
        print("REPEATS", {k: v for k, v in result["repeatability"].items() if k != "rows"}, flush=True)
        save()

    try:
        for server in servers:
            start(server)
            time.sleep(options.stagger_s)
        threads = [threading.Thread(target=run_pair, args=(pair,)) for pair in pairs]
        if control is not None:
            threads.append(threading.Thread(target=run_control))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        end(servers)
        save()


def key_of(pair: tuple[Server, Server]) -> str:
    return f"{pair[0].spec}-{pair[0].graph}"


def ask_all(server: Server, options: argparse.Namespace, result: dict[str, Any], save: Any) -> list[Any]:
    flush(server)
    begin = time.monotonic()
    answers: list[dict[str, Any]] = []
    result["servers"][server.name]["answers"] = answers
    for prompt in equality_prompts(options.prompts):
        answers.append({"length": len(prompt)} | ask_greedy(server, prompt, options.new_tokens))
        if len(answers) % 16 == 0:
            save()
    print(server.name, f"asked {len(answers)} in {time.monotonic() - begin:.1f} s", flush=True)
    return answers


def compare(
    pair: tuple[Server, Server], stock: list[Any], ours: list[Any], options: argparse.Namespace
) -> dict[str, Any]:
    """Where they differ both are asked again: does each repeat itself?"""
    rows = []
    for prompt, one, other in zip(equality_prompts(options.prompts), stock, ours, strict=True):
        row: dict[str, Any] = {"length": len(prompt), "equal": one["tokens"] == other["tokens"]}
        if not row["equal"]:
            at = first_difference(one["tokens"], other["tokens"])
            row |= {"first_difference": at, "stock_margin": one["margins"][at : at + 1]}
            for server, before in zip(pair, (one, other), strict=True):
                flush(server)
                again = ask_greedy(server, prompt, options.new_tokens)["tokens"]
                row[f"{server.side}_repeats"] = again == before["tokens"]
                row[f"{server.side}_again"] = again
        rows.append(row)
    return {
        "prompts": len(rows),
        "equal": sum(row["equal"] for row in rows),
        "different_lengths": [row["length"] for row in rows if not row["equal"]],
        "distinct_tokens": len({token for answer in stock for token in answer["tokens"]}),
        "rows": rows,
    }


def compare_repeats(control: Server, ordered: Server, result: dict[str, Any]) -> None:
    """The same prompts three times, of SGLang as it is and with an expert's tokens in order."""
    rows = []
    for idx, length in enumerate((100, 160, 300, 500, 800, 1300, 2100, 3400)):
        prompt = make_prompt(40_000 + idx, length)
        row: dict[str, Any] = {"length": length}
        for server in (control, ordered):
            replies = []
            for _ in range(3):
                flush(server)
                replies.append(ask_greedy(server, prompt, 16)["tokens"])
            row[server.side] = replies[0] == replies[1] == replies[2]
        rows.append(row)
    result["repeatability"] = {
        "prompts": len(rows),
        "control_repeats": [row["length"] for row in rows if row["control"]],
        "ordered_repeats": [row["length"] for row in rows if row["stock"]],
        "rows": rows,
    }


# ---- timing ------------------------------------------------------------------------------------------------
def timing(options: argparse.Namespace) -> None:
    """All engines resident, one asked at a time."""
    port = iter(range(options.first_port, options.first_port + 3000, 37))
    groups: dict[str, tuple[Server, ...]] = {}
    plan = {"plain": ("stock", "ours", "ram"), "dspark": ("stock", "ours", "ram", *options.more_sides)}
    for spec in () if options.late_only else options.spec:
        groups[spec] = tuple(
            prepare(make_server(options, side, spec, "full", next(port)), options.gpus[0])
            for side in plan[spec]
        )
    if options.late_work:
        late = argparse.Namespace(**vars(options))
        late.work, late.out = options.late_work.absolute(), options.out / "late"
        late.out.mkdir(parents=True, exist_ok=True)
        groups["late"] = tuple(
            prepare(make_server(late, side, "plain", "full", next(port)), options.gpus[-1])
            for side in ("stock", "ours")
        )
    steps = [
        *[(spec, phase) for phase in ("cached", "cold") for spec in options.spec],
        ("dspark", "draft-gap"),
        (options.spec[0], "prefill"),
        ("late", "prefill"),
        ("late", "timeline"),
        ("late", "cold"),
    ]
    servers = [server for group in groups.values() for server in group]
    result: dict[str, Any] = {"phases": {}, "servers": {}}
    try:
        for server in servers:
            start(server)
            time.sleep(options.stagger_s)
        for server in servers:
            await_ready(server, options.start_limit_s)
            print(server.name, f"ready {server.ready_s:.1f} s", server.error, flush=True)
        first_words(servers, options)
        for name, group in groups.items():
            result["servers"][name] = [describe(server) for server in group]
        record(options.out, options.label, result)
        for name, phase in steps:
            if name in groups and (not options.phases or phase in options.phases):
                result["phases"][f"{name}-{phase}"] = run_phase(phase, groups[name], options)
                record(options.out, options.label, result)
    finally:
        end(servers)
        record(options.out, options.label, result)


# ---- starts ------------------------------------------------------------------------------------------------
def starts(options: argparse.Namespace) -> None:
    """Start to first answer in turn, GPU memory before and after; last, a file cut off while serving."""
    result: dict[str, Any] = {"starts": []}
    port = iter(range(options.first_port, options.first_port + 3000, 37))
    last = None
    try:
        for repeat in range(options.repeats):
            for side in ("stock", "ours") if repeat % 2 == 0 else ("ours", "stock"):
                if last is not None:
                    stop(last)
                    time.sleep(2)
                before = used_mib(options.gpus[0])
                last = prepare(make_server(options, side, "plain", "full", next(port)), options.gpus[0])
                start(last)
                await_ready(last, options.start_limit_s)
                generate(last, [make_prompt(1, 16)], 4, timeout_s=120)
                row = {
                    "side": side,
                    "ready_s": last.ready_s,
                    "answered_s": time.monotonic() - last.started,
                    "used_mib": used_mib(options.gpus[0]) - before,
                    "memory_lines": describe(last)["memory_lines"],
                    "error": last.error,
                }
                result["starts"].append(row)
                print({key: value for key, value in row.items() if key != "memory_lines"}, flush=True)
                record(options.out, options.label, result)
        if options.keep_files:
            return
        if last is not None and last.side != "ours":
            stop(last)
            last = prepare(make_server(options, "ours", "plain", "full", next(port)), options.gpus[0])
            start(last)
            await_ready(last, options.start_limit_s)
        assert last is not None
        result["read_error"] = cut_off(last, options)
        print("READ ERROR", result["read_error"], flush=True)
    finally:
        if last is not None:
            stop(last)
        record(options.out, options.label, result)


def used_mib(gpu: str) -> int:
    query = ["nvidia-smi", "-i", gpu, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout)


def cut_off(server: Server, options: argparse.Namespace) -> dict[str, Any]:
    """Truncates the packed files under the engine; its next cold rows must end it with a named error."""
    generate(server, [make_prompt(5, 64)], 8)
    for path in sorted((options.work / f"packed-tp{options.tp}").glob("*.engram")):
        os.truncate(path, 1 << 20)
    outcome: dict[str, Any] = {"replies": []}
    for seed in range(3):
        try:
            reply = generate(server, [make_prompt(600_000 + seed, 300)], 32, timeout_s=60)
            outcome["replies"].append(reply[0]["output_ids"])
        except OSError as error:
            outcome["refused"] = repr(error)
            break
    assert server.process is not None
    try:
        outcome["exit_code"] = server.process.wait(60)
    except subprocess.TimeoutExpired:
        outcome["exit_code"] = "still running after 60 s"
    lines = server.log.read_text(errors="replace").splitlines()
    outcome["log"] = [line[:600] for line in lines if "EngramReadError" in line or "Engram rows" in line][-6:]
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("matrix", "timing", "starts"))
    add_arguments(parser)
    parser.add_argument("--gpus", nargs="+", default=["0"])
    parser.add_argument(
        "--first-port", type=int, default=31000, help="another where two of these run at once"
    )
    parser.add_argument(
        "--control", action="store_true", help="also SGLang without gpu_repeatable, to see it"
    )
    parser.add_argument("--at-once", type=int, default=64, help="servers asked at the same time")
    parser.add_argument("--late-work", type=Path, help="a model whose second Engram layer is late")
    parser.add_argument("--late-only", action="store_true", help="timing: without the other model's engines")
    parser.add_argument("--keep-files", action="store_true", help="starts: no packed file is cut off")
    parser.add_argument("--more-sides", nargs="*", default=[], help="for example ram8")
    options = parser.parse_args()
    if options.late_only and not options.late_work:
        parser.error("--late-only needs --late-work")
    options.work, options.out = options.work.absolute(), options.out.absolute()
    options.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    print(sys.argv, flush=True)
    {"matrix": matrix, "timing": timing, "starts": starts}[options.what](options)


if __name__ == "__main__":
    main()
