"""The CPU engine's logits against a GPU's kernels, of one V4.1-shaped model, within bounds stated beforehand.

    python benchmarks/gpu_engram.py build  --work W --engram-vocab-size 2000   on both machines: seeded, equal
    python benchmarks/gpu_logits.py write   --work W --file F.npz              on any CPU, before
    python benchmarks/gpu_logits.py compare --work W --file F.npz --out O      on the GPU machine

`write` serves the model with the CPU engine in fp32 (plain PyTorch paths, rows from disk) and keeps the
log-probabilities of the whole vocabulary for the last prompt tokens and the first new ones. It also computes
how far an honest GPU may be from that: the reference in bf16 whose linear layers round their inputs to FP8,
against the reference in fp32. Such roundings choose other experts and index positions where two are nearly
equal, as a GPU's do. So a single row is not bounded; the rows' median and 95th percentile are, to twice
theirs.

`compare` asks a GPU server with the plugin (rows from disk, CUDA graphs) the same, prefill and decode, and
ends with status 1 where a figure is out of its bound. `write` refuses a bound that a wrong row would pass.
"""

import argparse
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

# Below and above the window (128), above a page (256), and 2 x 512: the index leaves positions out at both
# ratios. Few and short ones, as a CPU spends about a second on 20 of their tokens.
LENGTHS = (40, 130, 300, 1060)
PROMPT_ROWS, NEW_TOKENS = 24, 8
FACTOR = 2.0  # a figure may be this often the roundings' own
POWER = 4.0  # and a wrong row must be this far outside


def prompts() -> list[list[int]]:
    from gpu_engram_phases import make_prompt  # beside this file

    return [make_prompt(500 + idx, length) for idx, length in enumerate(LENGTHS)]


def digest(model: Path) -> str:
    """Of all tensors: both machines must have built the same model."""
    found = hashlib.sha256()
    for path in sorted(model.glob("*.safetensors")):
        found.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            while part := file.read(1 << 24):
                found.update(part)
    return found.hexdigest()


def vocab_size(model: Path) -> int:
    return int(json.loads((model / "config.json").read_text())["text_config"]["vocab_size"])


def question(ids: list[int], vocab: int) -> dict[str, Any]:
    return {
        "input_ids": ids,
        "sampling_params": {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True},
        "return_logprob": True,
        "logprob_start_len": len(ids) - PROMPT_ROWS,
        "token_ids_logprob": list(range(vocab)),
    }


def rows_of(answer: dict[str, Any]) -> tuple[list[int], np.ndarray]:
    """(new tokens, log-probabilities [rows, vocab]): prompt rows, then those of the NEW_TOKENS."""
    meta = answer["meta_info"]
    rows = [row for row in meta["input_token_ids_logprobs"] if row] + meta["output_token_ids_logprobs"]
    found = np.asarray([[entry[0] for entry in row] for row in rows], dtype=np.float32)
    assert found.shape[0] - NEW_TOKENS in (PROMPT_ROWS - 1, PROMPT_ROWS), found.shape
    return answer["output_ids"], found


# ---- write -------------------------------------------------------------------------------------------------
def keep(work: Path, name: str, key: str, make: Callable[[], list[np.ndarray]]) -> list[np.ndarray]:
    """The arrays of `make`, one a prompt; those of an earlier write that was cut off, where it got so far."""
    path = work / f"logits-{name}.npz"
    if path.exists():
        held = np.load(path)
        if str(held["key"]) == key:
            print(f"{name}: kept from {path}", flush=True)
            return [held[f"a{idx}"] for idx in range(len(LENGTHS))]
    begin = time.monotonic()
    found = make()
    print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        arrays: dict[str, Any] = {f"a{idx}": array for idx, array in enumerate(found)}
        np.savez(file, key=key, **arrays)
    part.replace(path)
    return found


def ask_cpu_engine(work: Path) -> list[np.ndarray]:
    """A prompt's array: a column with the NEW_TOKENS in its last rows, then the log-probabilities."""
    model = work / "model"
    os.environ |= {
        "SGLANG_USE_CPU_ENGINE": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "SGLANG_CPU_OMP_THREADS_BIND": "0",
        "SPARKCTL_ENGRAM_DIR": str(work / "packed-tp1"),
        "SPARKCTL_ENGRAM_BUFFERED": "1",
        "SPARKCTL_ENGRAM_CACHE_GIB": "0.1",
        "SPARKCTL_ENGRAM_LOOKAHEAD_GIB": "0.1",
    }
    from sgl_ext.stand_ins import add_stand_ins

    add_stand_ins()
    import sglang

    engine = sglang.Engine(
        model_path=str(model),
        device="cpu",
        dtype="float32",
        max_total_tokens=8192,
        max_running_requests=4,
        chunked_prefill_size=2048,
        context_length=4096,
        cuda_graph_backend_decode="disabled",
        cuda_graph_backend_prefill="disabled",
        sampling_backend="pytorch",
        grammar_backend="none",
        mem_fraction_static=0.8,
        log_level="warning",
    )
    asked = [question(ids, vocab_size(model)) for ids in prompts()]
    answers = []
    for one in asked:
        sampling = one.pop("sampling_params")
        tokens, rows = rows_of(engine.generate(sampling_params=sampling, **one))
        column = np.zeros((rows.shape[0], 1), np.float32)
        column[-NEW_TOKENS:, 0] = tokens  # exact: below 2^24
        answers.append(np.concatenate([column, rows], axis=1))
        print(f"CPU engine: {len(one['input_ids'])} tokens", flush=True)
    engine.shutdown()
    return answers


def reference_rows(model: Path, sequences: list[list[int]], span: int, *, rounded: bool) -> list[np.ndarray]:
    """The reference's rows; `rounded`: bf16, and every linear layer's input in FP8 by groups of 128."""
    import torch
    import torch.nn.functional

    from sgl_ext.reference.v41_model import ReferenceModel

    functions: Any = torch.nn.functional
    exact = functions.linear

    def rounding(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if x.dtype == torch.bfloat16 and x.shape[-1] % 128 == 0:
            groups = x.float().unflatten(-1, (-1, 128))
            scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448
            x = ((groups / scale).to(torch.float8_e4m3fn).float() * scale).flatten(-2).to(x.dtype)
        # Products of bf16 are summed in fp32, as on a GPU; a CPU's own bf16 product may be far slower.
        summed: torch.Tensor = exact(x.float(), weight.float(), bias)
        return summed.to(x.dtype)

    reference = ReferenceModel.load(model, torch.bfloat16 if rounded else torch.float32)
    functions.linear = rounding if rounded else exact
    try:
        rows = []
        for ids in sequences:
            logits = reference.logits(ids[:-1]).log_softmax(-1)
            rows.append(logits[-span:].numpy().astype(np.float32))
            print(f"reference{' in FP8' if rounded else ''}: {len(ids)} tokens", flush=True)
        return rows
    finally:
        functions.linear = exact


def distances(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Root mean square over the vocabulary, a row each."""
    found: np.ndarray = np.sqrt(np.mean((left - right) ** 2, axis=1))
    return found


def summarize(rows: np.ndarray) -> dict[str, float]:
    return {"median": float(np.median(rows)), "p95": float(np.quantile(rows, 0.95)), "max": float(rows.max())}


def write(options: argparse.Namespace) -> None:
    work, model = options.work, options.work / "model"
    key = json.dumps([digest(model), LENGTHS, PROMPT_ROWS, NEW_TOKENS])
    answers = keep(work, "engine", key, lambda: ask_cpu_engine(work))
    tokens = [[int(token) for token in answer[-NEW_TOKENS:, 0]] for answer in answers]
    sequences = [[*ids, *new] for ids, new in zip(prompts(), tokens, strict=True)]
    span = answers[0].shape[0]
    exact = np.concatenate(
        keep(work, "exact", key, lambda: reference_rows(model, sequences, span, rounded=False))
    )
    rounded = np.concatenate(
        keep(work, "rounded", key, lambda: reference_rows(model, sequences, span, rounded=True))
    )
    engine = np.concatenate([answer[:, 1:] for answer in answers])
    wrong = np.roll(engine, 1, axis=0)  # another position's logits: what a mistake looks like
    facts = {
        "model_sha256": json.loads(key)[0],
        "asked": [*LENGTHS, PROMPT_ROWS, NEW_TOKENS],
        "engine_from_reference": summarize(distances(engine, exact)),
        "roundings_alone": summarize(distances(rounded, exact)),
        "roundings_same_first": float(np.mean(rounded.argmax(1) == exact.argmax(1))),
        "wrong_rows": summarize(distances(engine, wrong)),
        "tokens": tokens,
    }
    print(json.dumps(facts, indent=1))
    if facts["wrong_rows"]["median"] < POWER * FACTOR * facts["roundings_alone"]["median"]:
        sys.exit("error: the bound must be far from a wrong row, and is not\n  -> take a larger model")
    # Half precision costs 0.0035 of distance, where bounds are tenths, and half of the bytes to carry.
    np.savez_compressed(options.file, rows=engine.astype(np.float16), facts=json.dumps(facts))
    print(f"{options.file}: {options.file.stat().st_size / 1e6:.1f} MB")


# ---- compare -----------------------------------------------------------------------------------------------
def compare(options: argparse.Namespace) -> None:
    from gpu_engram import await_ready, describe, make_server, record, start, stop  # beside this file
    from gpu_engram_phases import post

    held = np.load(options.file)
    cpu, facts = held["rows"].astype(np.float32), json.loads(str(held["facts"]))
    if facts["asked"] != [*LENGTHS, PROMPT_ROWS, NEW_TOKENS]:
        sys.exit(
            f"error: {options.file} must hold this version's prompts, got {facts['asked']}\n"
            "  -> gpu_logits.py write"
        )
    model = options.work / "model"
    if (seen := digest(model)) != facts["model_sha256"]:
        sys.exit(
            f"error: the model must be {facts['model_sha256']}, got {seen}\n  -> gpu_engram.py build as above"
        )
    vocab = vocab_size(model)
    server = make_server(options, "ours", "plain", options.graph[0], options.first_port)
    result: dict[str, Any] = {"cpu": facts, "factor": FACTOR, "prompts": []}
    try:
        start(server)
        await_ready(server, options.start_limit_s)
        result["server"] = describe(server)
        if server.error:
            sys.exit(f"error: {server.name}: {server.error} ({server.log})")
        compared: list[np.ndarray] = []
        same_first: list[bool] = []
        span = len(cpu) // len(LENGTHS)
        prefill = span - NEW_TOKENS + 1  # the first new token's row is the prefill's too
        for place, ids in enumerate(prompts()):
            body = question(ids, vocab)
            tokens, rows = rows_of(json.loads(post(server, "/generate", body, options.first_limit_s)))
            wanted, expected = facts["tokens"][place], cpu[place * span : (place + 1) * span]
            # A decode row follows the same tokens on both sides up to the first that differs.
            differ = [one != other for one, other in zip(tokens, wanted, strict=True)]
            equal = differ.index(True) if any(differ) else NEW_TOKENS
            last = min(prefill + equal, span)
            far = distances(rows[:last], expected[:last])
            compared.append(far)
            same_first += (rows[:last].argmax(1) == expected[:last].argmax(1)).tolist()
            result["prompts"].append(
                {
                    "length": len(ids),
                    "rows": last,
                    "equal_tokens": equal,
                    "prefill": summarize(far[:prefill]),
                    "decode": summarize(far[prefill:]) if last > prefill else None,
                    "row_distances": far.tolist(),
                }
            )
            print({k: v for k, v in result["prompts"][-1].items() if k != "row_distances"}, flush=True)
    finally:
        stop(server)
        record(options.out, options.label, result)
    seen_rows = np.concatenate(compared)
    figures = summarize(seen_rows) | {"same_first": float(np.mean(same_first)), "rows": len(seen_rows)}
    bounds = {name: FACTOR * facts["roundings_alone"][name] for name in ("median", "p95")}
    misses = [name for name, bound in bounds.items() if not figures[name] <= bound]
    result |= {"figures": figures, "bounds": bounds, "misses": misses, "within": not misses}
    record(options.out, options.label, result)
    print(json.dumps({name: result[name] for name in ("figures", "bounds", "within")}, indent=1))
    if misses:
        sys.exit(
            f"error: {', '.join(misses)} must be within the bound\n  -> see row_distances in {options.out}"
        )


def main() -> None:
    from gpu_engram import add_arguments  # beside this file

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("write", "compare"))
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--first-port", type=int, default=33500)
    add_arguments(parser)
    parser.set_defaults(label="logits")
    options = parser.parse_args()
    options.work, options.out, options.file = (
        options.work.absolute(),
        options.out.absolute(),
        options.file.absolute(),
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a time limit must not leave the server behind
    {"write": write, "compare": compare}[options.what](options)


if __name__ == "__main__":
    main()
