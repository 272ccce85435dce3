"""The boot checks of FP8 linear layers and of wo_a on one GPU, with V4.1's shapes on 1, 3 and 4 ranks.

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


def check_wo_a(tp: int, device: torch.device) -> list[dict[str, Any]]:
    """wo_a in bf16, as SGLang multiplies it, and in FP8; the kernel of the latter needs a GPU."""
    from sgl_ext.dense_fp8.linear_cases import BATCH_TOKENS, DECODE_TOKENS, PREFILL_TOKENS
    from sgl_ext.wo_a.boot_choice import Bf16, Fp8, check_form, rank_shape
    from sgl_ext.wo_a.packed_layers import KERNEL_ROWS

    sizes = (DECODE_TOKENS, BATCH_TOKENS, KERNEL_ROWS - 1)
    if device.type == "cpu":
        shape = rank_shape(rank_config(tp, 8), tp)
        forms: tuple[Any, ...] = (Bf16(lambda rows, w, **_: torch.einsum("tgd,grd->tgr", rows, w)),)
    else:
        from sglang.srt.models import deepseek_v4

        shape, sizes = rank_shape(rank_config(tp, 1), tp), (*sizes, PREFILL_TOKENS)
        product = deepseek_v4._apply_wo_a_bf16_matmul
        forms = (Bf16(product), Fp8(product))
    with torch.inference_mode():
        return [check_form(form, shape, sizes, device).as_json() for form in forms]


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
    wo_a: dict[str, list[dict[str, Any]]] = {}
    report = {
        "device": "cpu" if options.dry_run else torch.cuda.get_device_name(),
        "dry_run": options.dry_run,
        "versions": {name: metadata.version(name) for name in ("sglang", "torch")},
        "python": platform.python_version(),
        "command": sys.argv,
        "verdicts": verdicts,
        "wo_a": wo_a,
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
        wo_a[f"tp{tp}"] = check_wo_a(tp, device)
        print(f"tp{tp} wo_a", json.dumps(wo_a[f"tp{tp}"]), flush=True)
        (options.out / "dense.json").write_text(json.dumps(report, indent=1) + "\n")
    passed = [any(one["problem"] is None for one in found) for found in verdicts.values()]
    if not all(passed):
        sys.exit("one candidate must pass on every split, none did (dense.json says why)")
    failed = [one for found in wo_a.values() for one in found if one["problem"] is not None]
    if failed:
        sys.exit(f"every form of wo_a must pass on every split, got {failed[0]['problem']}")


if __name__ == "__main__":
    main()
