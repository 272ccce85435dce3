"""Measures the cost table of a running engine.

    python -m sgl_ext.speculation.tune --url URL --report FILE --out FILE

FILE of --report is a rank's report (SPARKCTL_REPORT_DIR); it says what the engine is and which batches its
graphs have. Run it where the head's HTTP server can be reached, with nothing else on the nodes:
`sparkctl tune spec` does, and brings the table to every node. The engine reads a table at its start. An API
key is read from the environment (SPARKCTL_API_KEY), so that no process list shows it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sgl_ext.errors import CostTableError, SglExtError
from sgl_ext.speculation.cost_table import CostTable
from sgl_ext.speculation.cost_table_file import MeasuredEngine, write_cost_table
from sgl_ext.speculation.measure_plan import build_cost_table, plan_timings
from sgl_ext.speculation.time_steps import Engine, time_steps

KEY_VARIABLE = "SPARKCTL_API_KEY"
# Ordinary pieces in every tokenizer that DeepSeek ships and in the small models' one.
_TOKENS = (300, 900)
CONTEXT_TOKENS = 256


def tune(
    url: str,
    speculation: dict[str, Any],
    *,
    max_batch: int | None = None,
    context_tokens: int = CONTEXT_TOKENS,
    rounds: int = 3,
    allow_busy: bool = False,
    api_key: str | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> tuple[MeasuredEngine, CostTable, list[list[int]]]:
    """The engine as it was measured, its table, and samples behind each entry.

    speculation: `details.speculation` of a rank's report. Blocks for as long as the steps take; raises
    CostTableError where the engine or the machine does not allow a measurement.
    """
    engine = MeasuredEngine.model_validate({**speculation["engine"], "context_tokens": context_tokens})
    largest = min(max_batch or speculation["max_batch"], speculation["max_batch"])
    timings = plan_timings(speculation["graph_batches"], largest, engine.block, rounds)
    target = Engine(url=url, prompts=_draw_prompts(largest, context_tokens), api_key=api_key)
    steps_ns: dict[tuple[int, int], list[int]] = {}
    for done, timing in enumerate(timings, 1):
        steps_ns.setdefault((timing.batch, timing.width), []).extend(time_steps(target, timing))
        report(f"{done} of {len(timings)}: batch {timing.batch}, {_say(timing.width)}")
    table, samples = build_cost_table(steps_ns, engine.block, allow_busy=allow_busy)
    return engine, table, samples


def read_report(path: Path) -> dict[str, Any]:
    """`details.speculation` of a rank's report. Raises CostTableError where the rank has none."""
    try:
        found = json.loads(path.read_bytes())["details"].get("speculation")
    except (OSError, ValueError, KeyError) as error:
        raise CostTableError(
            f"A rank's report must be readable, got {error!r} ({path}).",
            hint="sparkctl status; sparkctl logs",
        ) from error
    if found is None:
        raise CostTableError(
            f"The rank must decide speculation, got a report without it ({path}).",
            hint="set extensions.dspark.width to auto in the recipe and start again",
        )
    return dict(found)


def _draw_prompts(count: int, length: int) -> list[list[int]]:
    draw = random.Random(1)
    return [[draw.randrange(*_TOKENS) for _ in range(length)] for _ in range(count)]


def _say(width: int) -> str:
    return "the draft alone" if width < 0 else f"width {width}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--max-batch", type=int)
    parser.add_argument("--context-tokens", type=int, default=CONTEXT_TOKENS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--allow-busy", action="store_true", help="a machine that was busy is not refused")
    options = parser.parse_args(arguments)
    try:
        engine, table, samples = tune(
            options.url,
            read_report(options.report),
            max_batch=options.max_batch,
            context_tokens=options.context_tokens,
            rounds=options.rounds,
            allow_busy=options.allow_busy,
            api_key=os.environ.get(KEY_VARIABLE),
            report=lambda line: print(line, file=sys.stderr, flush=True),
        )
        print(write_cost_table(options.out, engine, table, samples))
    except SglExtError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
