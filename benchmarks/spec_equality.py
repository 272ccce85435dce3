"""Drafted against serial greedy output on SGLang's CPU engine, with the width decided for every step.

python -m benchmarks.spec_equality OUT: starts a serial engine and three drafting ones (block 5), two at a
time, and gives all of them the same traffic: 78 prompts, two of them aborted. Wishes for speculation are
mixed within each batch. OUT gets every answer of every engine (tokens, verify steps, tokens from the prefix
cache) and summary.json; the exit status is 1 where an answer differs.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgl_ext.speculation import published_costs
from sgl_ext.speculation.cost_table import CostTable
from sgl_ext.speculation.cost_table_file import MeasuredEngine, write_cost_table
from tests.sgl_ext.agreeing_draft import build_agreeing
from tests.sgl_ext.engine_variables import cpu_engine_variables

BLOCK, CHUNK = 5, 256
WISHES: tuple[object, ...] = ("auto", "auto", "off", 1, "auto", 3, 5, "auto")
SCRIPT = Path(__file__).parents[1] / "tests/sgl_ext/run_traffic.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """table: costs that the controller decides from; they are published ones, not this machine's."""

    name: str
    ranks: int = 1
    verify: str | None = None
    table: CostTable | None = None


ENGINES = (
    Engine(name="serial"),
    Engine(name="static", verify="static", table=published_costs.tp4_tuned()),
    Engine(name="compact", verify="compact", table=published_costs.steep()),
    Engine(name="compact-2-ranks", ranks=2, verify="compact", table=published_costs.tp4_tuned()),
)


def prompt(length: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, 900) for _ in range(length)]


def make_stages() -> list[list[dict[str, Any]]]:
    """Chunked prompts, more short ones of all wishes than run at once, aborts among others, then turns that
    go on from earlier ones and repeated prompts."""

    def ask(name: str, idx: int, **more: Any) -> dict[str, Any]:
        return {"name": name, "spec": WISHES[idx % len(WISHES)], **more}

    lengths = (5, 33, 90, 127, 128, 129, 260, 1, 40, 255, 256, 257)
    chunked = [ask(f"chunked {idx}", idx, ids=prompt(520 + 40 * idx, idx), new=12) for idx in range(8)]
    short = [
        ask(f"short {idx}", idx, ids=prompt(lengths[idx % len(lengths)], 100 + idx), new=10 + idx % 23)
        for idx in range(32)
    ]
    among = [ask(f"among {idx}", idx, ids=prompt(30 + idx, 200 + idx), new=20) for idx in range(14)]
    aborted = [
        ask(f"aborted {idx}", idx, ids=prompt(50, 300 + idx), new=60, abort_after=4) for idx in range(2)
    ]
    hits = [ask(f"hit {idx}", idx + 3, ids=prompt(520 + 40 * idx, idx), new=12) for idx in range(8)]
    turns = [
        ask(f"turn {idx}", idx + 1, after=f"chunked {idx}", ids=prompt(4 + idx, 400 + idx), new=16)
        for idx in range(8)
    ]
    late = [ask(f"late {idx}", idx, after=f"hit {idx}", ids=prompt(3, 500 + idx), new=9) for idx in range(6)]
    return [chunked, short, [*among[:7], *aborted, *among[7:]], [*hits, *turns], late]


def start(engine: Engine, place: int, model: Path, folder: Path) -> subprocess.Popen[bytes]:
    folder.mkdir()
    (folder / "reports").mkdir()
    arguments: dict[str, Any] = {
        "model_path": str(model),
        "served_model_name": "tiny-v41",
        "tp_size": engine.ranks,
        "port": 46000 + 300 * place,
        "chunked_prefill_size": CHUNK,
    }
    variables = cpu_engine_variables(engine.ranks, folder / "reports")
    if engine.verify is not None:
        arguments |= {"speculative_algorithm": "DSPARK", "speculative_dspark_block_size": BLOCK}
        variables |= {"SPARKCTL_SPEC": "1", "SGLANG_RAGGED_VERIFY_MODE": engine.verify}
    if engine.table is not None:
        variables["SPARKCTL_SPEC_TABLE"] = str(write_table(engine, model, folder))
    (folder / "job.json").write_text(json.dumps({"engine": arguments, "stages": make_stages()}))
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, str(SCRIPT), "job.json", "out.json"],
            cwd=folder,
            env=variables,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def write_table(engine: Engine, model: Path, folder: Path) -> Path:
    import hashlib
    from importlib import metadata

    assert engine.table is not None
    shape = hashlib.sha256((model / "config.json").read_bytes()).hexdigest()[:12]
    measured = MeasuredEngine(
        sglang=metadata.version("sglang"),
        model=f"tiny-v41 (config {shape})",
        tp_size=engine.ranks,
        verify=engine.verify,  # type: ignore[arg-type]
        block=BLOCK,
        context_tokens=1,
    )
    samples = [[1] * len(row) for row in engine.table.verify_ns]
    write_cost_table(folder / "table.json", measured, engine.table, samples)
    return folder / "table.json"


def run_pair(pair: tuple[Engine, ...], model: Path, scratch: Path) -> None:
    running = {
        engine.name: start(engine, ENGINES.index(engine), model, scratch / engine.name) for engine in pair
    }
    try:
        for process in running.values():
            process.wait(500)
    finally:
        for process in running.values():
            process.kill()


def compare(answers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    serial = answers["serial"]
    summary: dict[str, Any] = {"prompts": len(serial)}
    for name, other in answers.items():
        aborted = [key for key in serial if key.startswith("aborted")]
        different = [
            key
            for key, answer in serial.items()
            if not _same(answer["tokens"], other[key]["tokens"], is_aborted=key in aborted)
        ]
        done = [answer for key, answer in other.items() if key not in aborted]
        steps = sum(answer["verify_steps"] for answer in done)
        summary[name] = {
            "different": different,
            "equal": len(serial) - len(different),
            "from_the_prefix_cache": sum(bool(answer["cached"]) for answer in done),
            "tokens": sum(len(answer["tokens"]) for answer in done),
            "verify_steps": steps,
        }
    return summary


def _same(serial: list[int], other: list[int], *, is_aborted: bool) -> bool:
    """An abort ends where it finds the request; up to there the tokens are the same."""
    if is_aborted:
        shorter = min(len(serial), len(other))
        return shorter >= 4 and serial[:shorter] == other[:shorter]
    return serial == other


def main() -> int:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / "model"
        build_agreeing(model, seed=1)
        for first in range(0, len(ENGINES), 2):
            run_pair(ENGINES[first : first + 2], model, Path(scratch))
        answers = {}
        for engine in ENGINES:
            folder = Path(scratch) / engine.name
            assert (folder / "out.json").is_file(), (folder / "log").read_text()[-4000:]
            answers[engine.name] = json.loads((folder / "out.json").read_text())
            reports = [
                json.loads(path.read_text()) for path in sorted((folder / "reports").glob("rank-*.json"))
            ]
            record = {"speculation": [report["details"]["speculation"] for report in reports]}
            kept = {
                name: {key: answer[key] for key in ("tokens", "verify_steps", "cached", "finish")}
                for name, answer in answers[engine.name].items()
            }
            text = json.dumps(record | {"answers": kept}, separators=(",", ":"))
            (out / f"{engine.name}.json").write_text(text + "\n")
    summary = compare(answers)
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary, indent=1))
    return 1 if any(summary[engine.name]["different"] for engine in ENGINES) else 0


if __name__ == "__main__":
    raise SystemExit(main())
