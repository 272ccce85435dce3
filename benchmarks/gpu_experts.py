"""The boot check of MXFP4 expert backends on one GPU: every candidate's errors and times, and the choice.

    python benchmarks/gpu_experts.py --model W/model --out O     shapes of the model, and of V4.1 on 4 ranks
    python benchmarks/gpu_experts.py --model W/model --out O --dry-run      on a CPU, the model's shape

Then every candidate that passed is timed again, in turn, with more repeats than at boot: `chosen_over_best`
is the time of the chosen one over the fastest, per size and over all. O/experts.json is written after each
candidate; the one that compiles for minutes comes last.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

_ROUNDS = 30


def shapes_of(model: Path, dry_run: bool) -> dict[str, Any]:
    from sgl_ext.experts.expert_weights import ExpertShape

    config = json.loads((model / "config.json").read_text())
    text = config.get("text_config", config)
    experts = text["n_routed_experts"]
    shapes = {
        "model": ExpertShape(
            num_experts=experts,
            hidden=text["hidden_size"],
            width=text["moe_intermediate_size"],
            top_k=text["num_experts_per_tok"],
            first_expert=0,
            total_experts=experts,
        )
    }
    if not dry_run:  # the real model's experts on one of four ranks, without expert groups and with two
        for name, experts, width in (("v41-tp4-ep1", 384, 576), ("v41-tp4-ep2", 192, 1152)):
            shapes[name] = ExpertShape(
                num_experts=experts, hidden=5120, width=width, top_k=6, first_expert=0, total_experts=384
            )
    return shapes


class Bench:
    """One shape's cases, verdicts so far and prepared candidates."""

    def __init__(self, shape: Any, device: torch.device) -> None:
        from sgl_ext.experts.boot_choice import list_candidates
        from sgl_ext.experts.candidate import Device
        from sgl_ext.experts.check_cases import BATCH_TOKENS, DECODE_TOKENS, PREFILL_TOKENS, draw_cases
        from sgl_ext.experts.self_check import expect

        self.shape, self.device, self.limit = shape, device, 10.0
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        sizes = (DECODE_TOKENS, BATCH_TOKENS) + (() if device.type == "cpu" else (PREFILL_TOKENS,))
        self.cases = draw_cases(shape, sizes, dtype=dtype, device=device, limit=self.limit)
        self.expected = expect(shape, self.cases, self.limit, device)
        is_cuda = device.type == "cuda"
        self.here = Device(
            kind=device.type, capability=torch.cuda.get_device_capability() if is_cuda else None
        )
        slow_to_compile = ("flashinfer_mxfp4",)
        found = list_candidates(self.here, dtype)
        self.candidates = sorted(found, key=lambda item: item.name in slow_to_compile)
        self.verdicts: list[Any] = []

    def check(self, candidate: Any) -> dict[str, Any]:
        from sgl_ext.experts.self_check import check_candidate

        begin = time.monotonic()
        verdict = check_candidate(candidate, self.here, self.expected, must_repeat=True)
        self.verdicts.append(verdict)
        return verdict.as_json() | {"check_s": time.monotonic() - begin}

    def choose(self) -> str:
        from sgl_ext.experts.choose import AUTO, Vote, choose_backend

        vote = Vote(rank=0, host="local", wanted=AUTO, verdicts=tuple(self.verdicts))
        return choose_backend([vote])

    def time_again(self, chosen: str) -> dict[str, Any]:
        """Seconds of a call, candidates in turn within each round."""
        from sgl_ext.experts.check_cases import draw_packed

        passed = {item.name for item in self.verdicts if item.passed and item.name != "reference"} | {chosen}
        ready = {
            item.name: (item, item.prepare(draw_packed(self.shape, self.device), self.shape, self.limit))
            for item in self.candidates
            if item.name in passed
        }
        cases = [case for case in self.cases if case.name.endswith(" tokens")]
        raw: dict[str, dict[str, list[float]]] = {case.name: {name: [] for name in ready} for case in cases}
        for case in cases:
            for idx in range(_ROUNDS if self.device.type == "cuda" else 2):
                order = list(ready.items())
                for name, (candidate, prepared) in order if idx % 2 == 0 else order[::-1]:
                    raw[case.name][name].append(self._time(candidate, prepared, case))
        medians = {
            size: {name: statistics.median(times[1:]) for name, times in sides.items()}
            for size, sides in raw.items()
        }
        ratios = {size: times[chosen] / min(times.values()) for size, times in medians.items()}
        cost = {
            name: statistics.geometric_mean([times[name] for times in medians.values()]) for name in ready
        }
        return {
            "median_s": medians,
            "chosen_over_best": ratios | {"all sizes": cost[chosen] / min(cost.values())},
            "raw_s": raw,
        }

    def _time(self, candidate: Any, prepared: Any, case: Any) -> float:
        is_cuda = self.device.type == "cuda"
        if is_cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        candidate.run(prepared, case.call)
        if is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.dry_run:
        import os

        os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
        from sgl_ext.stand_ins import add_stand_ins

        add_stand_ins()
    device = torch.device("cpu" if options.dry_run else "cuda")
    report: dict[str, Any] = {
        "device": "cpu" if options.dry_run else torch.cuda.get_device_name(),
        "versions": {name: metadata.version(name) for name in ("sglang", "torch")},
        "python": platform.python_version(),
        "command": sys.argv,
        "shapes": {},
    }

    def save() -> None:
        temporary = options.out / ".experts.part"
        temporary.write_text(json.dumps(report, indent=1) + "\n")
        temporary.replace(options.out / "experts.json")

    if not options.dry_run:
        start_runtime(options.model)
    with torch.inference_mode():
        benches = {
            name: Bench(shape, device) for name, shape in shapes_of(options.model, options.dry_run).items()
        }
        for name, bench in benches.items():
            report["shapes"][name] = {"shape": str(bench.shape), "verdicts": [], "choices": []}
        for idx in range(len(next(iter(benches.values())).candidates)):
            for name, bench in benches.items():
                entry = report["shapes"][name]
                entry["verdicts"].append(bench.check(bench.candidates[idx]))
                print(name, json.dumps(entry["verdicts"][-1]), flush=True)
                save()
            settled = idx >= len(bench.candidates) - 2  # before the slow one, and after it
            for name, bench in benches.items() if settled else ():
                chosen = bench.choose()
                timed = bench.time_again(chosen)
                report["shapes"][name]["choices"].append(
                    {"chosen": chosen, "of": [item.name for item in bench.verdicts]} | timed
                )
                print(name, chosen, timed["chosen_over_best"], flush=True)
                save()


def start_runtime(model: Path) -> None:
    """SGLang's expert methods ask its runtime for the server's arguments and the ranks: here one rank."""
    from sglang.srt.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
    from sglang.srt.runtime_context import publish
    from sglang.srt.server_args import ServerArgs

    from sgl_ext.hooks.expert_row_order import HOOK as ROW_ORDER
    from sgl_ext.install_hooks import install_hooks

    install_hooks([ROW_ORDER], metadata.version("sglang"))  # as in the engine: Marlin repeats with it
    publish(ServerArgs(model_path=str(model), moe_runner_backend="marlin"), role="scheduler")
    init_distributed_environment(
        world_size=1, rank=0, local_rank=0, distributed_init_method="tcp://127.0.0.1:33477"
    )
    initialize_model_parallel()


if __name__ == "__main__":
    main()
