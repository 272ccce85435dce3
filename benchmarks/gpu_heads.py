"""Attention of TP 3's ranks on one GPU: 24, 24 and 16 real heads in SGLang's padded kernel, against PyTorch.

    python benchmarks/gpu_heads.py --out O            decode and prefill kernels of sm_90; a few seconds
    python benchmarks/gpu_heads.py --out O --stores   and SGLang's store kernels, compiled here
    python benchmarks/gpu_heads.py --out O --dry-run  on a CPU: PyTorch against itself, does the script run

64 heads in 8 groups over three ranks, as sgl_ext/balanced_heads.py does: 24, 24, and 16 with 8 of padding.
Each rank's query heads stand in a query padded to the width that the kernel takes (64), as
MqaAttentionBase._kernel_num_heads pads it. Keys are packed as SGLang stores them (584 bytes a token, sliding
window and selected rows), and a rank's output must be the same heads of the 64-head call: errors against fp32
PyTorch on the same packed keys, and bits against the whole call.

Then the boot check that every rank on sm_12x runs (sgl_ext/kv_layouts), with V4.1's shapes on one, three and
four ranks and this GPU's kernel in the place of sm_12x's: the kernel must pass, and must be refused when it
is called wrongly. O/heads.json.
"""

import argparse
import json
import platform
import sys
import time
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
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


BOOT_CONFIG = {"sliding_window": WINDOW, "index_topk": SELECTED, "compress_ratios": [0, 1, 2]}


def attend_here(**call: Any) -> tuple[torch.Tensor, None]:
    """The kernel of sm_90 with the arguments of sm_12x's."""
    q = call["q"].squeeze(1)
    heads = q.shape[1]
    extra = {name: call.get(name) for name in EXTRA}
    from sglang.kernels.ops.attention import flash_mla_interface

    out = flash_mla_interface.flash_mla_with_kvcache(
        q=pad_rank(q, 0, heads, 0, 1).unsqueeze(1),
        k_cache=call["k_cache"].view(torch.float8_e4m3fn),
        head_dim_v=DIM,
        block_table=None,
        cache_seqlens=None,
        tile_scheduler_metadata=flash_mla_interface.get_mla_metadata()[0],
        softmax_scale=call["softmax_scale"],
        is_fp8_kvcache=True,
        indices=call["indices"],
        topk_length=call["topk_length"],
        attn_sink=pad_rank(call["attn_sink"], 0, heads, 0, 0),
        **{name: as_fp8(value) for name, value in extra.items()},
    )[0]
    return out[:, :, :heads], None


EXTRA = ("extra_k_cache", "extra_indices_in_kvcache", "extra_topk_length")


def as_fp8(value: torch.Tensor | None) -> torch.Tensor | None:
    return value.view(torch.float8_e4m3fn) if value is not None and value.dtype == torch.uint8 else value


def attend_plainly(**call: Any) -> tuple[torch.Tensor, None]:
    """For a dry run: plain PyTorch with the same arguments, from the caches that it is given."""
    from sgl_ext.kernels.kv_slots import load_rows
    from sgl_ext.kernels.sparse_attention import attend_rows

    tables, lists, rows_before = [], [], 0
    for cache, indices, lengths in (("k_cache", "indices", "topk_length"), EXTRA):
        if call.get(cache) is None:
            continue
        pages, page_size = call[cache].shape[:2]
        raw = call[cache].as_strided((pages, call[cache].stride(0)), (call[cache].stride(0), 1))
        tables.append(load_rows(raw, torch.arange(pages * page_size), page_size))
        rows = call[indices][:, 0].long()
        ended = torch.arange(rows.shape[1]) >= call[lengths].unsqueeze(1)
        lists.append(torch.where((rows >= 0) & ~ended, rows + rows_before, -1))
        rows_before += pages * page_size
    sink, scale = call["attn_sink"], call["softmax_scale"]
    out = attend_rows(call["q"][:, 0], torch.cat(tables), torch.cat(lists, dim=1), sink, scale)
    return out.unsqueeze(1), None


def wrong_calls(attend: Any) -> dict[str, Any]:
    """Mistakes that the check must name, made with the real kernel."""

    def shift_rows(**call: Any) -> Any:
        return attend(**(call | {"indices": torch.where(call["indices"] > 0, call["indices"] - 1, 0)}))

    def forget_sink(**call: Any) -> Any:
        return attend(**(call | {"attn_sink": torch.full_like(call["attn_sink"], -1e30)}))

    def ignore_lengths(**call: Any) -> Any:
        full = torch.full_like(call["topk_length"], call["indices"].shape[-1])
        return attend(**(call | {"topk_length": full, "indices": call["indices"].clamp_min(0)}))

    def forget_selected(**call: Any) -> Any:
        return attend(**{name: value for name, value in call.items() if name not in EXTRA})

    def swap_lists(**call: Any) -> Any:
        if call.get("extra_k_cache") is None:
            return attend(**call)
        return attend(**(call | {"k_cache": call["extra_k_cache"], "extra_k_cache": call["k_cache"]}))

    return {
        "caches swapped": swap_lists,
        "rows shifted by one": shift_rows,
        "no sink": forget_sink,
        "lengths ignored": ignore_lengths,
        "no selected rows": forget_selected,
    }


def boot_checks(device: torch.device, *, stores: bool) -> dict[str, Any]:
    """Verdicts of the boot check; `expected` says whether each must pass."""
    from sgl_ext.experts.candidate import Presence
    from sgl_ext.kv_layouts import packed_rows
    from sgl_ext.kv_layouts.attention_cases import rank_shape
    from sgl_ext.kv_layouts.boot_check import LAYOUTS, LayoutKernels, check_layout
    from sgl_ext.kv_layouts.sglang_kernels import store_by_sglang

    here = Presence(missing=None, versions={"sglang": metadata.version("sglang")})
    attend = attend_here if device.type == "cuda" else attend_plainly
    store = store_by_sglang if stores else packed_rows.store_rows
    kernels = {"kernel": attend, **wrong_calls(attend)}
    found: dict[str, Any] = {"store": "SGLang" if stores else "PyTorch", "verdicts": []}
    for tp in (1, 3, 4):
        config = SimpleNamespace(num_attention_heads=-(-8 // tp) * tp * 8, **BOOT_CONFIG)
        for name, call in kernels.items() if tp == 3 else (("kernel", attend),):
            own = LayoutKernels(store=store, attend=call)
            with torch.inference_mode():
                verdict = check_layout(LAYOUTS["v4"], own, here, rank_shape(config, tp), device).as_json()
            is_right = (verdict["problem"] is None) == (name == "kernel")
            found["verdicts"].append({"tp": tp, "attention": name, "as_expected": is_right, **verdict})
            print(json.dumps(found["verdicts"][-1]), flush=True)
    return found


def check_stores(device: torch.device) -> list[dict[str, Any]]:
    """SGLang's store kernel of each format against the plain form: bytes, and what is read back."""
    from sgl_ext.kv_layouts.packed_rows import V4, V41, V41_FP4, empty_cache, load_rows, store_rows
    from sgl_ext.kv_layouts.sglang_kernels import store_by_sglang

    found = []
    for form in (V4, V41, V41_FP4):
        draw = torch.Generator().manual_seed(7)
        rows = torch.randn((1024, DIM), generator=draw).to(device, torch.bfloat16)
        slots = torch.randperm(1024, generator=draw).to(device, torch.int32)
        caches = [empty_cache(form, 4, PAGE_TOKENS, device) for _ in range(2)]
        one: dict[str, Any] = {"format": form.name, "bytes_per_token": form.bytes_per_token}
        began = time.perf_counter()
        try:
            store_by_sglang(caches[0], slots, rows, PAGE_TOKENS, form)
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 - a format that this GPU cannot store is a result
            one["problem"] = f"raised {type(error).__name__}: {str(error)[:500]}"
        else:
            store_rows(caches[1], slots, rows, PAGE_TOKENS, form)
            read = [load_rows(cache, slots, PAGE_TOKENS, form).float() for cache in caches]
            one["equal_rows"] = int((read[0] == read[1]).all(dim=1).sum())
            one["rows"] = len(rows)
            one["largest_relative_error"] = float(
                ((read[0] - rows.float()).norm(dim=1) / rows.float().norm(dim=1)).max()
            )
        one["first_call_s"] = round(time.perf_counter() - began, 2)
        found.append(one)
        print(one, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--stores", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cpu" if options.dry_run else "cuda")
    report: dict[str, Any] = {
        "device": "cpu" if options.dry_run else torch.cuda.get_device_name(),
        "dry_run": options.dry_run,
        "versions": {name: metadata.version(name) for name in ("sglang", "torch")},
        "python": platform.python_version(),
        "command": sys.argv,
        "results": [],
    }

    def write() -> None:
        (options.out / "heads.json").write_text(json.dumps(report, indent=1) + "\n")

    for queries in (1, 6) if options.dry_run else (1, 6, 64, 300):
        report["results"].append(check(queries, device))
        print(report["results"][-1], flush=True)
        write()
    report["boot_check"] = boot_checks(device, stores=False)
    write()
    if options.stores:
        report["stores"] = check_stores(device)
        write()
        report["boot_check_stores"] = boot_checks(device, stores=True)
        write()
    checks = [report[name] for name in ("boot_check", "boot_check_stores") if name in report]
    if not all(verdict["as_expected"] for one in checks for verdict in one["verdicts"]):
        sys.exit("the boot check must pass the kernel and refuse wrong calls (heads.json says which did not)")


if __name__ == "__main__":
    main()
