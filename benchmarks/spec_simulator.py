"""The speculation controller against every fixed width and no speculation, over many traces; no GPU, no
engine.

    python benchmarks/spec_simulator.py --out results/spec-simulator-2026-11-29/verdicts.json
    python benchmarks/spec_simulator.py --trace recorded.jsonl --table cost-table.json --out verdicts.json

Traces are drawn from published acceptance figures (sgl_ext/speculation/generate_traces.py) unless --trace
names a recorded one; cost tables come from published step times unless --table names a measured one.
"""

import argparse
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from sgl_ext.speculation import published_costs
from sgl_ext.speculation.acceptance_trace import Trace, read_trace
from sgl_ext.speculation.adversary import lure
from sgl_ext.speculation.controller import ControllerSettings, RegretShare, SpeculationController, VerifyShape
from sgl_ext.speculation.cost_table import CostTable
from sgl_ext.speculation.cost_table_file import CostTableFile
from sgl_ext.speculation.generate_traces import draw_trace
from sgl_ext.speculation.request_option import AUTO
from sgl_ext.speculation.simulate import Verdict, judge
from sgl_ext.speculation.trace_recipes import ALL_RECIPES

PUBLISHED = {
    "tp4-profile": published_costs.tp4_profile,
    "tp4-tuned": published_costs.tp4_tuned,
    "tp3": published_costs.tp3,
    "steep": published_costs.steep,
}
OVER_PLAIN, OVER_BEST, REGRET = 0.97, 0.98, 4.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path, action="append", default=[], help="recorded trace (JSON lines)")
    parser.add_argument("--table", type=Path, action="append", default=[], help="measured cost table")
    parser.add_argument("--batches", default="1,4,16")
    parser.add_argument("--seeds", type=int, default=2, help="traces drawn of each recipe")
    parser.add_argument("--first-seed", type=int, default=0, help="seeds from here on; 0 was used in tuning")
    parser.add_argument("--shape", choices=[shape.value for shape in VerifyShape], default="equal")
    parser.add_argument("--share", choices=[share.value for share in RegretShare], default="mean")
    parser.add_argument("--lag", type=int, default=0, help="steps planned before a result is known")
    parser.add_argument("--only", default="", help="recipes whose name begins so")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    settings = ControllerSettings(shape=VerifyShape(options.shape), share=RegretShare(options.share))
    tables = _tables(options.table)
    verdicts = []
    for table_name, table, trace, batch, seed in _cases(options, tables, settings):
        verdict = judge(trace, table, batch, settings, lag=options.lag)
        verdicts.append({"table": table_name, "seed": seed, **asdict(verdict), "missed": _missed(verdict)})
        if verdicts[-1]["missed"]:
            print(json.dumps({key: verdicts[-1][key] for key in _SHORT}), flush=True)
    result = {
        "what": "controller over no speculation, over the best fixed width in hindsight, and worst regret",
        "bars": {"over_plain": OVER_PLAIN, "over_best": OVER_BEST, "regret_plain_steps": REGRET},
        "options": {key: str(value) for key, value in vars(options).items()},
        "commit": _commit(),
        "host": {"machine": platform.machine(), "cpus": os.cpu_count(), "python": platform.python_version()},
        "num_cases": len(verdicts),
        "num_missed": {name: sum(name in one["missed"] for one in verdicts) for name in _BARS},
        "worst": {
            "over_plain": min(one["over_plain"] for one in verdicts),
            "over_best": min(one["over_best"] for one in verdicts),
            "regret": max(one["regret"] for one in verdicts),
            "own_regret": max(one["own_regret"] for one in verdicts),
        },
        "decision_us_by_batch": {str(batch): _decision_us(batch) for batch in (1, 4, 16)},
        "verdicts": verdicts,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(
        json.dumps({key: result[key] for key in ("num_cases", "num_missed", "worst", "decision_us_by_batch")})
    )


_BARS = ("over_plain", "over_best", "regret")
_SHORT = ("trace", "table", "batch_size", "over_plain", "over_best", "best_width", "regret", "missed")


def _missed(verdict: Verdict) -> list[str]:
    bars = (verdict.over_plain >= OVER_PLAIN, verdict.over_best >= OVER_BEST, verdict.regret <= REGRET)
    return [name for name, reached in zip(_BARS, bars, strict=True) if not reached]


def _tables(paths: list[Path]) -> dict[str, CostTable]:
    if not paths:
        return {name: build() for name, build in PUBLISHED.items()}
    return {path.stem: CostTableFile.model_validate_json(path.read_bytes()).table() for path in paths}


def _cases(
    options: argparse.Namespace, tables: dict[str, CostTable], settings: ControllerSettings
) -> Iterator[tuple[str, CostTable, Trace, int, int]]:
    recorded = [read_trace(path) for path in options.trace]
    batches = [int(batch) for batch in options.batches.split(",")]
    for name, table in tables.items():
        for batch in batches:
            for trace in recorded:
                yield name, table, trace, batch, 0
            for recipe in [] if recorded else ALL_RECIPES:
                if recipe.name.startswith(options.only) and recipe.num_requests >= batch:
                    for seed in range(options.first_seed, options.first_seed + options.seeds):
                        yield name, table, draw_trace(recipe, seed), batch, seed
        if not recorded and "lure".startswith(options.only[:4]):
            for bait in (0, 8, 64):
                yield name, table, lure(table, 4000, settings, bait=bait), 1, 0


def _decision_us(batch: int) -> float:
    """Host time of planning and observing a step, the mean over 2,000 steps."""
    controller = SpeculationController(published_costs.tp3(), ControllerSettings())
    ids = [str(idx) for idx in range(batch)]
    for request_id in ids:
        controller.admit(request_id, AUTO)
    confidence = [[40000] * 5] * batch
    start = time.perf_counter()
    for step in range(2000):
        plan = controller.plan_verify(controller.plan_draft(ids), confidence)
        controller.observe(plan, [min(width, step % 4) for width in plan.widths])
    return round((time.perf_counter() - start) / 2000 * 1e6, 1)


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


if __name__ == "__main__":
    main()
