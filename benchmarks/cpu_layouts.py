"""Greedy tokens and log-probabilities of every parallel layout against one rank, on the CPU engine; raw JSON.

    python benchmarks/cpu_layouts.py --out O

Real SGLang on this machine's CPU with a small V4.1-shaped model: TP 2, 3 and 4, with 4, 2 and 1 groups of
experts, three ranks with padded heads. One engine after the other. A token that differs is a failure.
"""

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

LAYOUTS = ((1, 1), (2, 1), (2, 2), (3, 1), (3, 3), (4, 1), (4, 2), (4, 4))  # TP, groups of experts
LENGTHS = (16, 40, 130, 300, 700, 1301)


def serve(model: Path, folder: Path, tp: int, ep: int, requests: list[dict[str, Any]]) -> dict[str, Any]:
    from tests.sgl_ext.engine_variables import cpu_engine_variables

    folder.mkdir(parents=True)
    engine = {"model_path": str(model), "tp_size": tp, "ep_size": ep, "port": 46000 + 100 * tp + 10 * ep}
    (folder / "job.json").write_text(json.dumps({"engine": engine, "requests": requests}))
    (folder / "reports").mkdir()
    script = Path(__file__).parents[1] / "tests/sgl_ext/run_engine.py"
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(script), "job.json", "out.json"],
        cwd=folder,
        env=cpu_engine_variables(tp, folder / "reports"),
        capture_output=True,
        text=True,
        timeout=900,
    )
    if not (folder / "out.json").is_file():
        return {"error": done.stderr[-2000:]}
    reports = [json.loads(path.read_text()) for path in sorted((folder / "reports").glob("rank-*.json"))]
    return {
        "seconds": round(time.monotonic() - begin, 1),
        "ranks": len(reports),
        "hook_sets": reports[0]["hook_sets"],
        "experts": {key: reports[0]["details"]["experts"][key] for key in ("chosen", "shape")},
        "answers": json.loads((folder / "out.json").read_text()),
    }


def compare(base: list[dict[str, Any]], seen: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for length, one, other in zip(LENGTHS, base, seen, strict=True):
        pairs = zip(one["new"], other["new"], strict=True)
        apart = max(abs(a - b) for left, right in pairs for a, b in zip(left, right, strict=True))
        rows.append(
            {
                "length": length,
                "equal": one["tokens"] == other["tokens"],
                "largest_logprob_difference": apart,
            }
        )
    return rows


def main() -> None:
    from sgl_ext.tiny_model.v41 import build_v41
    from sgl_ext.tiny_model.v41_sizes import CPU

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    names = [f"tp{tp}-ep{ep}" for tp, ep in LAYOUTS[1:]]
    parser.add_argument("--layouts", nargs="*", default=names, choices=names, help="besides one rank")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    draw = random.Random(5)
    prompts = [[draw.randrange(3, 900) for _ in range(length)] for length in LENGTHS]
    requests = [{"ids": ids, "new": 12, "last": 1} for ids in prompts]
    report: dict[str, Any] = {
        "command": sys.argv,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "versions": {name: metadata.version(name) for name in ("sglang", "torch")},
        "prompt_tokens": LENGTHS,
        "new_tokens": 12,
        "layouts": {},
    }
    wrong = []
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        # Every expert for every token: rounding cannot choose another one among near equals.
        build_v41(folder / "model", replace(CPU, num_experts_per_tok=CPU.n_routed_experts), seed=1)
        base: list[dict[str, Any]] | None = None
        for tp, ep in LAYOUTS:
            name = f"tp{tp}-ep{ep}"
            if tp > 1 and name not in options.layouts:
                continue
            result = serve(folder / "model", folder / name, tp, ep, requests)
            answers = result.pop("answers", None)
            if answers is not None:
                base = base or answers
                result["tokens"] = [answer["tokens"] for answer in answers]
                result["against_tp1"] = compare(base, answers)
            equal = answers is not None and all(row["equal"] for row in result["against_tp1"])
            wrong += [] if equal else [name]
            report["layouts"][name] = result
            print(
                name, "equal" if equal else result.get("error", "DIFFERS"), result.get("seconds"), flush=True
            )
            (options.out / "layouts.json").write_text(json.dumps(report, indent=1) + "\n")
    if wrong:
        sys.exit(f"every layout must answer as TP 1 does, got others from: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
