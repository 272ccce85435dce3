"""What deciding widths costs the host in a step beyond SGLang's own work, by batch. No GPU.

    python benchmarks/spec_host_cost.py --work W --out O/spec-host-cost.json
    python benchmarks/spec_host_cost.py --out O/decide.json --parts decide        no engine, seconds

  decide  the plan of a step and what is learned from it, for drafts that are always, often and never right
  times   SGLang's CPU engine with a tiny V4.1 whose draft agrees: the time spent in each hook, without what
          it calls of SGLang. Two cost tables: with one every step drafts, with the other none does.
  calls   the same with the torch calls made in each hook counted; of these named are the ones that make a
          GPU's host wait, and the ones that may copy to a GPU

A CPU engine computes for tens of ms between two hooks, which empties the caches that `decide` runs from: a
GPU's host is somewhere in between. Hooks that are captured in a GPU's graphs (IN_GRAPH) cost its host
nothing; here they compute.
"""

import argparse
import functools
import gc
import inspect
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]  # siblings, and sgl_ext

BLOCK = 5
BATCHES = (1, 4, 16)
PARTS = ("decide", "times", "calls")
LUCK = {"always right": 1.0, "often right": 0.7, "never right": 0.0}
NAME = "spec_host_cost"
# In the engine's own process: where to write, and whether calls are counted (which makes them slower).
OUT_VARIABLE, COUNT_VARIABLE = "SPEC_HOST_COST_OUT", "SPEC_HOST_COST_COUNT"
# Calls of a CUDA tensor that wait for the GPU; to() and tensor() may copy to it.
WAITS = {"item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__"}
COPIES = {"to", "cuda", "tensor", "as_tensor"}
IN_GRAPH = ("engram_ragged_hash", "ragged_requests")
PUBLISH = "publish (of spec_result)"  # once a second: in every step of an engine that is so slow
PAYS, PAYS_NOT = "drafting pays", "drafting does not pay"
TOKENS = {PAYS: (240, 180, 150), PAYS_NOT: (50, 40, 30)}  # of a request, by batch
now = time.perf_counter_ns


# ---- decide ------------------------------------------------------------------------------------------------
def time_decisions(steps: int) -> dict[str, Any]:
    """Medians, and the fastest tenth: a machine with neighbours is now and then twice as slow."""
    found = {}
    gc.disable()
    for luck_name, luck in LUCK.items():
        for batch in BATCHES:
            plans, learned = run_steps(batch, luck, steps)
            both = [plan + learn for plan, learn in zip(plans[1:], learned, strict=False)]
            found[f"{luck_name}, batch {batch}"] = {
                name: {"median": statistics.median(values) / 1e3, "tenth": quantile(values, 0.1) / 1e3}
                for name, values in (("plan", plans), ("learn", learned), ("both", both))
            }
        gc.collect()
    gc.enable()
    return found


def quantile(values: list[int], share: float) -> int:
    return sorted(values)[int(share * len(values))]


def run_steps(batch: int, luck: float, steps: int) -> tuple[list[int], list[int]]:
    """Nanoseconds of each step's plan and learning (metrics included), a step late as under overlap."""
    from sgl_ext.speculation import published_costs
    from sgl_ext.speculation.controller import VerifyShape
    from sgl_ext.speculation.rank_speculation import RankSpeculation

    draw = random.Random(3)
    rank = RankSpeculation(block=BLOCK, shape=VerifyShape.RAGGED, table=published_costs.tp4_tuned())
    requests = [
        SimpleNamespace(
            rid=f"{draw.getrandbits(128):032x}",
            sampling_params=SimpleNamespace(custom_params=None),
            origin_input_ids=list(range(64)),
            output_ids=[],
        )
        for _ in range(batch)
    ]
    plans, learned = [], []
    before: tuple[Any, list[int]] | None = None
    for _ in range(steps):
        begin = now()
        step = rank.plan(requests)
        plans.append(now() - begin)
        if before is not None:
            begin = now()
            rank.observe(*before, draft_s=0.001, verify_s=0.002)
            learned.append(now() - begin)
        accepted = []
        for width in step.plan.widths:
            count = 0
            while count < width and draw.random() < luck:
                count += 1
            accepted.append(count)
        before = step, accepted
    return plans[steps // 10 :], learned[steps // 10 :]


# ---- in the engine -----------------------------------------------------------------------------------------
class Meter:
    """Own time and torch calls of what is metered, without what it calls of SGLang, by kind of step."""

    def __init__(self, out: Path, counts: bool) -> None:
        self._out = out
        self._counts = counts
        self._stack: list[list[Any]] = []  # name (None: SGLang's own), begin, time of what it called
        self._step = "none"
        self._num_steps: Counter[str] = Counter()
        self._times: dict[str, defaultdict[str, int]] = {}
        self._calls: dict[str, defaultdict[str, Counter[str]]] = {}

    @property
    def inside(self) -> str | None:
        return self._stack[-1][0] if self._stack else None

    def run(self, name: str | None, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._stack.append([name, now(), 0])
        try:
            return call(*args, **kwargs)
        finally:
            _, begin, inner = self._stack.pop()
            spent = now() - begin
            if self._stack:
                self._stack[-1][2] += spent
            if name is not None:
                self._times.setdefault(self._step, defaultdict(int))[name] += spent - inner

    def count(self, call: str) -> None:
        if self.inside is not None:
            self._calls.setdefault(self._step, defaultdict(Counter))[self.inside][call] += 1

    def begin_step(self, speculation: Any) -> None:
        step = speculation.step
        self._step = f"batch {len(step.plan.widths)}, {'drafts' if step.drafts else 'plain'}"
        self._num_steps[self._step] += 1
        if sum(self._num_steps.values()) % 10 == 0:
            self.run(None, self._write)

    def _write(self) -> None:
        found = {}
        for step, number in self._num_steps.items():
            times = {name: spent / number / 1e3 for name, spent in self._times.get(step, {}).items()}
            calls = {
                name: {call: round(times / number, 3) for call, times in counted.items()}
                for name, counted in self._calls.get(step, {}).items()
            }
            found[step] = {"steps": number, "us_a_step": times, "torch_calls_a_step": calls}
        self._out.write_text(json.dumps(found))


def register() -> None:
    """SGLang's entry point into a plugin, called before sgl_ext's: its hooks are metered."""
    out = os.environ.get(OUT_VARIABLE)
    if out is None:
        return
    from sgl_ext.hook_sets import HookSet
    from sgl_ext.process_role import ProcessRole, find_process_role

    if find_process_role(sys._getframe(1)) is not ProcessRole.SCHEDULER:
        return
    meter = Meter(Path(out), os.environ.get(COUNT_VARIABLE) == "1")
    meter_hooks(meter, HookSet.SPECULATION)
    meter_methods(meter)
    if meter._counts:
        count_torch_calls(meter)


def meter_hooks(meter: Meter, hook_set: Any) -> None:
    import importlib

    from sgl_ext.hook import HookKind
    from sgl_ext.hook_sets import HOOK_MODULES

    for name in HOOK_MODULES[hook_set]:
        hook = importlib.import_module(f"sgl_ext.hooks.{name}").HOOK
        metered = meter_hook(meter, name, hook.replacement, hook.kind is HookKind.AROUND)
        object.__setattr__(hook, "replacement", metered)


def meter_hook(
    meter: Meter, name: str, replacement: Callable[..., Any], is_around: bool
) -> Callable[..., Any]:
    @functools.wraps(replacement)
    def run(*args: Any, **kwargs: Any) -> Any:
        if is_around:
            original, *rest = args
            return meter.run(name, replacement, functools.partial(meter.run, None, original), *rest, **kwargs)
        return meter.run(name, replacement, *args, **kwargs)

    return run


def meter_methods(meter: Meter) -> None:
    """The parts of spec_step and spec_result."""
    from sgl_ext.speculation.engine_speculation import EngineSpeculation
    from sgl_ext.speculation.publish_metrics import MetricsPublisher
    from sgl_ext.speculation.rank_speculation import RankSpeculation

    for owner, method, name in (
        (RankSpeculation, "plan", "plan (of spec_step)"),
        (RankSpeculation, "observe", "learn (of spec_result)"),
        (MetricsPublisher, "publish", PUBLISH),
    ):
        original = getattr(owner, method)
        setattr(owner, method, functools.partialmethod(_run_method, meter, name, original))
    begin = EngineSpeculation.begin

    def begin_step(speculation: Any, requests: Any) -> None:
        begin(speculation, requests)
        meter.begin_step(speculation)

    EngineSpeculation.begin = begin_step  # type: ignore[method-assign]


def _run_method(
    owner: Any, meter: Meter, name: str, original: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    return meter.run(name, original, owner, *args, **kwargs)


def count_torch_calls(meter: Meter) -> None:
    from torch.overrides import TorchFunctionMode

    class Count(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:  # every torch function and method of a tensor
            if meter.inside is not None:
                meter.count(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    Count().__enter__()


# ---- engine ------------------------------------------------------------------------------------------------
def run_engines(work: Path, parts: list[str]) -> dict[str, Any]:
    model = build_model(work)
    return {
        f"{table}, {part}": run_engine(work, model, table, part == "calls")
        for table in (PAYS, PAYS_NOT)
        for part in ("times", "calls")
        if part in parts
    }


def build_model(work: Path) -> Path:
    from sgl_ext.tiny_model.agreeing_draft import build_agreeing_v41
    from sgl_ext.tiny_model.v41_sizes import CPU

    size = replace(
        CPU,
        num_experts_per_tok=CPU.n_routed_experts,
        dspark_num_experts_per_tok=CPU.dspark_n_routed_experts,
        dspark_markov_rank=64,
    )
    model = work / "spec-host-cost-model"
    build_agreeing_v41(model, size, seed=11, embed_gain=1024.0, markov_gain=512.0)
    return model


def write_table(path: Path, model: Path, table: str) -> None:
    """Published times; or a draft that costs ten plain steps."""
    import hashlib
    from importlib import metadata

    from sgl_ext.speculation import published_costs
    from sgl_ext.speculation.cost_table_file import MeasuredEngine, write_cost_table

    costs = published_costs.tp4_tuned()
    if table == PAYS_NOT:
        costs = replace(costs, draft_ns=tuple(10 * row[0] for row in costs.verify_ns))
    shape = hashlib.sha256((model / "config.json").read_bytes()).hexdigest()[:12]
    engine = MeasuredEngine(
        sglang=metadata.version("sglang"),
        model=f"tiny (config {shape})",
        tp_size=1,
        verify="compact",
        block=BLOCK,
        context_tokens=1,
    )
    write_cost_table(path, engine, costs, [[3] * len(row) for row in costs.verify_ns])


def run_engine(work: Path, model: Path, table: str, counts: bool) -> dict[str, Any]:
    from gpu_spec_plugin import _write_entry_point

    folder = work / f"{table.replace(' ', '-')}-{'calls' if counts else 'times'}"
    folder.mkdir(parents=True, exist_ok=True)
    _write_entry_point(folder, NAME, f"{NAME}:register")
    (folder / f"{NAME}.py").write_text(Path(__file__).read_text())
    write_table(folder / "table.json", model, table)
    out = folder / "meter.json"
    out.unlink(missing_ok=True)
    own = ("SPARKCTL_", "SGLANG_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)} | {
        "SGLANG_USE_CPU_ENGINE": "1", "SPARKCTL_FORK_CHILDREN": "1", "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "SGLANG_CPU_OMP_THREADS_BIND": "0",
        "SPARKCTL_SPEC": "1", "SGLANG_RAGGED_VERIFY_MODE": "compact",
        "SPARKCTL_SPEC_TABLE": str(folder / "table.json"), "SPARKCTL_REPORT_DIR": str(folder),
        "PYTHONPATH": os.pathsep.join(filter(None, [
            str(folder), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")])),
        OUT_VARIABLE: str(out), COUNT_VARIABLE: "1" if counts else "0",
    }  # fmt: skip
    with (folder / "engine.log").open("w") as log:
        command = [sys.executable, str(Path(__file__).absolute()), "--serve", str(model), table]
        subprocess.run(command, env=environment, stdout=log, stderr=log, cwd=folder, check=True)
    return json.loads(out.read_text())


def serve(model: str, table: str) -> None:
    """The child: 1, 4 and 16 requests at once, long enough that most steps are of so many."""
    from sgl_ext.stand_ins import add_stand_ins

    add_stand_ins()
    import sglang

    engine = sglang.Engine(
        model_path=model, served_model_name="tiny", device="cpu", dtype="float32",
        max_total_tokens=16384, max_running_requests=16, chunked_prefill_size=2048, context_length=2048,
        cuda_graph_backend_decode="disabled", cuda_graph_backend_prefill="disabled",
        sampling_backend="pytorch", grammar_backend="none", mem_fraction_static=0.8, log_level="warning",
        sleep_on_idle=True, speculative_algorithm="DSPARK", speculative_dspark_block_size=BLOCK,
        enable_metrics=True, port=46200,
    )  # fmt: skip
    draw = random.Random(5)
    for batch, tokens in zip(BATCHES, TOKENS[table], strict=True):
        prompts = [[draw.randrange(3, 900) for _ in range(32)] for _ in range(batch)]
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        engine.generate(input_ids=prompts, sampling_params=[sampling] * batch)
    engine.shutdown()


# ---- report ------------------------------------------------------------------------------------------------
def summarize(engine: dict[str, Any]) -> dict[str, Any]:
    """By kind of step, without IN_GRAPH and PUBLISH: microseconds in hooks, torch calls, those that wait or
    copy."""
    left_out = (*IN_GRAPH, PUBLISH)
    found: dict[str, Any] = {}
    for run, steps in engine.items():
        table, what = run.rsplit(", ", 1)
        for step, measured in steps.items():
            if measured["steps"] < 10:
                continue
            entry = found.setdefault(f"{table}, {step}", {})
            if what == "times":
                times = measured["us_a_step"]
                entry["us_a_step"] = round(sum(times[hook] for hook in times if hook not in left_out), 1)
            else:
                found_calls = measured["torch_calls_a_step"]
                calls = {hook: counted for hook, counted in found_calls.items() if hook not in left_out}
                entry["torch_calls"] = round(sum(sum(counted.values()) for counted in calls.values()), 2)
                entry["waits"] = pick(calls, WAITS)
                entry["copies"] = pick(calls, COPIES)
    return found


def pick(calls: dict[str, dict[str, float]], names: set[str]) -> dict[str, float]:
    return {
        f"{hook}: {call}": number
        for hook, counted in calls.items()
        for call, number in counted.items()
        if call in names
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=inspect.cleandoc(__doc__ or ""), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, help="folder for the model and the engines' files")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(*options.serve)
        return 0
    engines = [part for part in options.parts if part != "decide"]
    if options.out is None or (engines and options.work is None):
        parser.error("--out is needed, and --work for the parts times and calls")
    result: dict[str, Any] = {
        "python": platform.python_version(), "machine": platform.machine(), "cpus": os.cpu_count(),
    }  # fmt: skip
    if "decide" in options.parts:
        result["decide_us"] = time_decisions(options.steps)
    if engines:
        engine = run_engines(options.work.absolute(), engines)
        result |= {"summary": summarize(engine), "engine": engine}
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: result[key] for key in ("decide_us", "summary") if key in result}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
