"""The boot check of FP8 linear layers on one GPU, with the shapes of V4.1 on one, three and four ranks.

    python benchmarks/gpu_dense.py --out O            SGLang's kernels that this GPU has; a few seconds
    python benchmarks/gpu_dense.py --out O --dry-run  on a CPU: plain PyTorch, does the script run

Off sm_12x the plugin leaves SGLang's choice alone; this runs the check all the same, so that its cases and
its way through SGLang's own layer are proved on a GPU. On sm_90 that is the Triton kernel. O/dense.json.
"""

import argparse
import json
import platform
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

QUANT = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0",
}


class Plain:
    """For a dry run."""

    name, error_bound = "plain", 0.08

    def probe(self, device: Any) -> Any:
        from sgl_ext.experts.candidate import Presence

        return Presence(missing=None, versions={"torch": metadata.version("torch")})

    def prepare(self, weight: Any, shape: Any) -> Any:
        return weight

    def run(self, prepared: Any, rows: torch.Tensor) -> torch.Tensor:
        from sgl_ext.dense_fp8.linear_cases import reference

        return reference(prepared, rows)


def rank_config(tp: int, scale: int) -> SimpleNamespace:
    """V4.1's sizes (padded to whole head groups where the ranks do not divide them), 1 / scale of them."""
    groups = -(-8 // tp) * tp
    return SimpleNamespace(
        hidden_size=5120 // scale,
        q_lora_rank=1280 // scale,
        head_dim=512 // scale,
        num_attention_heads=8 * groups,
        o_groups=groups,
        o_lora_rank=1024 // scale,
        n_shared_experts=1,
        moe_intermediate_size=2304 // scale,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    from sgl_ext.dense_fp8.boot_choice import check_linear
    from sgl_ext.dense_fp8.linear_cases import BATCH_TOKENS, DECODE_TOKENS, PREFILL_TOKENS, rank_shapes
    from sgl_ext.dense_fp8.stock_linear import stock_candidates
    from sgl_ext.experts.candidate import Device

    device = torch.device("cpu" if options.dry_run else "cuda")
    capability = None if options.dry_run else torch.cuda.get_device_capability()
    here = Device(kind=device.type, capability=capability)
    candidates: tuple[Any, ...] = (Plain(),) if options.dry_run else stock_candidates(QUANT)
    sizes = (DECODE_TOKENS, BATCH_TOKENS) + (() if options.dry_run else (PREFILL_TOKENS,))
    verdicts: dict[str, list[dict[str, Any]]] = {}
    report = {
        "device": "cpu" if options.dry_run else torch.cuda.get_device_name(),
        "dry_run": options.dry_run,
        "versions": {name: metadata.version(name) for name in ("sglang", "torch")},
        "python": platform.python_version(),
        "command": sys.argv,
        "verdicts": verdicts,
    }
    for tp in (1, 3, 4):
        shapes = rank_shapes(rank_config(tp, 8 if options.dry_run else 1), tp)
        verdicts[f"tp{tp}"] = []
        for candidate in candidates:
            with torch.inference_mode():
                verdict = check_linear(candidate, here, shapes, sizes, device).as_json()
            verdicts[f"tp{tp}"].append(verdict)
            print(f"tp{tp}", json.dumps(verdict), flush=True)
            (options.out / "dense.json").write_text(json.dumps(report, indent=1) + "\n")
    passed = [any(one["problem"] is None for one in found) for found in verdicts.values()]
    if not all(passed):
        sys.exit("one candidate must pass on every split, none did (dense.json says why)")


if __name__ == "__main__":
    main()
