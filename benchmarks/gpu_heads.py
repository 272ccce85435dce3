"""Attention of TP 3's ranks on one GPU: 24, 24 and 16 real heads in SGLang's padded kernel, against PyTorch.

    python benchmarks/gpu_heads.py --out O            decode and prefill kernels of sm_90; a few seconds
    python benchmarks/gpu_heads.py --out O --dry-run  on a CPU: PyTorch against itself, does the script run

64 heads in 8 groups over three ranks, as sgl_ext/balanced_heads.py does: 24, 24, and 16 with 8 of padding.
Each rank's query heads stand in a query padded to the width that the kernel takes (64), as
MqaAttentionBase._kernel_num_heads pads it. Keys are packed as SGLang stores them (584 bytes a token, sliding
window and selected rows), and a rank's output must be the same heads of the 64-head call: errors against fp32
PyTorch on the same packed keys, and bits against the whole call. O/heads.json.
"""

import argparse
import json
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

HEADS, DIM, PAGE_TOKENS, WINDOW, SELECTED = 64, 512, 256, 128, 512
SLOT_BYTES, PAGE_ALIGN = 584, 576
RANKS = ((0, 24, 0), (24, 24, 0), (48, 16, 8))  # first real head, real heads, heads of padding
KERNEL_HEADS = 64
SCALE = DIM**-0.5


def make_cache(tokens: int, seed: int) -> torch.Tensor:
    """[pages, bytes] as SGLang's pools: rows of 576 bytes, then their scales, pages of whole 576 bytes."""
    from sgl_ext.kernels.kv_slots import store_rows

    draw = torch.Generator().manual_seed(seed)
    pages = -(-tokens // PAGE_TOKENS)
    page_bytes = -(-PAGE_TOKENS * SLOT_BYTES // PAGE_ALIGN) * PAGE_ALIGN
    cache = torch.zeros((pages, page_bytes), dtype=torch.uint8)
    rows = torch.randn((tokens, DIM), generator=draw)
    store_rows(cache, torch.arange(tokens), rows, PAGE_TOKENS)
    return cache


def make_case(queries: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(queries)
    window = torch.stack([torch.randperm(1024, generator=draw)[:WINDOW] for _ in range(queries)])
    chosen = torch.stack([torch.randperm(4096, generator=draw)[:SELECTED] for _ in range(queries)])
    return {
        "q": torch.randn((queries, HEADS, DIM), generator=draw).to(torch.bfloat16),
        "sink": torch.randn(HEADS, generator=draw),
        "window": window.to(torch.int32),
        "chosen": chosen.to(torch.int32),
        "window_cache": make_cache(1024, 1),
        "chosen_cache": make_cache(4096, 2),
    }


def reference(case: dict[str, torch.Tensor]) -> torch.Tensor:
    from sgl_ext.kernels.kv_slots import load_rows
    from sgl_ext.kernels.sparse_attention import attend_rows

    tables = [
        load_rows(case["window_cache"], torch.arange(1024), PAGE_TOKENS),
        load_rows(case["chosen_cache"], torch.arange(4096), PAGE_TOKENS),
    ]
    rows = torch.cat([case["window"].long(), case["chosen"].long() + 1024], dim=1)
    return attend_rows(case["q"].float(), torch.cat(tables), rows, case["sink"], SCALE)


def as_pages(cache: torch.Tensor) -> torch.Tensor:
    pages, page_bytes = cache.shape
    view = cache.view(torch.float8_e4m3fn)
    return view.as_strided((pages, PAGE_TOKENS, 1, SLOT_BYTES), (page_bytes, SLOT_BYTES, SLOT_BYTES, 1))


def kernel(case: dict[str, torch.Tensor], q: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """q [queries, 64, 512] -> [queries, 64, 512], the call of DeepseekV4AttnBackend on sm_90."""
    from sglang.kernels.ops.attention import flash_mla_interface

    queries = q.shape[0]
    device = q.device
    out = flash_mla_interface.flash_mla_with_kvcache(
        q=q.unsqueeze(1),
        k_cache=as_pages(case["window_cache"]),
        head_dim_v=DIM,
        block_table=None,
        cache_seqlens=None,
        tile_scheduler_metadata=flash_mla_interface.get_mla_metadata()[0],
        softmax_scale=SCALE,
        is_fp8_kvcache=True,
        indices=case["window"].unsqueeze(1),
        topk_length=torch.full((queries,), WINDOW, dtype=torch.int32, device=device),
        attn_sink=sink,
        extra_k_cache=as_pages(case["chosen_cache"]),
        extra_indices_in_kvcache=case["chosen"].unsqueeze(1),
        extra_topk_length=torch.full((queries,), SELECTED, dtype=torch.int32, device=device),
    )[0]
    return out.squeeze(1)


def pad_rank(tensor: torch.Tensor, first: int, real: int, padding: int, dim: int) -> torch.Tensor:
    """A rank's heads, zero heads of balanced padding, and zeros up to the kernel's width."""
    own = tensor.narrow(dim, first, real)
    missing = list(tensor.shape)
    missing[dim] = KERNEL_HEADS - real
    assert padding <= missing[dim]
    return torch.cat([own, own.new_zeros(missing)], dim=dim).contiguous()


def check(queries: int, device: torch.device) -> dict[str, Any]:
    case = make_case(queries)
    wanted = reference(case)
    on_device = {name: tensor.to(device) for name, tensor in case.items()}

    def run(q: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
        if device.type == "cuda":
            return kernel(on_device, q.to(device), sink.to(device)).cpu()
        return reference(case | {"q": q, "sink": sink}).to(torch.bfloat16)

    whole = run(case["q"], case["sink"])
    ranks = []
    for first, real, padding in RANKS:
        own = run(
            pad_rank(case["q"], first, real, padding, 1), pad_rank(case["sink"], first, real, padding, 0)
        )
        part = wanted[:, first : first + real]
        error = (own[:, :real].float() - part).norm(dim=-1) / part.norm(dim=-1)
        ranks.append(
            {
                "heads": real + padding,
                "real_heads": real,
                "largest_relative_error": float(error.max()),
                "equals_whole_call": torch.equal(own[:, :real], whole[:, first : first + real]),
            }
        )
    error = (whole.float() - wanted).norm(dim=-1) / wanted.norm(dim=-1)
    return {"queries": queries, "whole_call_largest_relative_error": float(error.max()), "ranks": ranks}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cpu" if options.dry_run else "cuda")
    results = []
    for queries in (1, 6) if options.dry_run else (1, 6, 64, 300):
        results.append(check(queries, device))
        print(results[-1], flush=True)
        report = {
            "device": "cpu" if options.dry_run else torch.cuda.get_device_name(),
            "dry_run": options.dry_run,
            "versions": {name: metadata.version(name) for name in ("sglang", "torch")},
            "python": platform.python_version(),
            "command": sys.argv,
            "results": results,
        }
        (options.out / "heads.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
