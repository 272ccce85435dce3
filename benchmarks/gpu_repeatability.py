"""Which of SGLang's kernels give another result when they are called again with the same inputs (no engine).

    python benchmarks/gpu_repeatability.py OUT.json

Each case runs 20 times on the same inputs and counts how many results differ from the first.
"""

import functools
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu_repeatable import align_in_order  # beside this file

EXPERTS, TOP_K, HIDDEN, WIDTH = 32, 6, 4096, 256
TIMES = 20


def count_different(run: Callable[[], torch.Tensor]) -> int:
    first = run().clone()
    torch.cuda.synchronize()
    return sum(not torch.equal(first, run()) for _ in range(TIMES))


def marlin_moe(tokens: int) -> Callable[[], torch.Tensor]:
    from sglang.srt.layers.moe.fused_moe_triton.fused_marlin_moe import fused_marlin_moe
    from sglang.srt.layers.quantization.marlin_utils import marlin_make_workspace

    device = torch.device("cuda", 0)
    torch.manual_seed(tokens)

    def words(*shape: int) -> torch.Tensor:
        return torch.randint(-(1 << 31), 1 << 31, shape, device=device).to(torch.int32)

    def scales(*shape: int) -> torch.Tensor:
        return torch.randint(117, 121, shape, device=device).to(torch.uint8).view(torch.float8_e8m0fnu)

    x = torch.randn(tokens, HIDDEN, device=device, dtype=torch.bfloat16)
    weights, ids = torch.rand(tokens, EXPERTS, device=device).topk(TOP_K)
    arguments: dict[str, Any] = {
        "hidden_states": x,
        "w1": words(EXPERTS, HIDDEN // 16, 2 * WIDTH * 2),
        "w2": words(EXPERTS, WIDTH // 16, HIDDEN * 2),
        "w1_scale": scales(EXPERTS, HIDDEN // 32, 2 * WIDTH),
        "w2_scale": scales(EXPERTS, WIDTH // 32, HIDDEN),
        "gating_output": weights,
        "topk_weights": weights.float(),
        "topk_ids": ids.to(torch.int32),
        "num_bits": 4,
        "clamp_limit": 10.0,
    }

    def run() -> torch.Tensor:
        workspace = marlin_make_workspace(device, max_blocks_per_sm=4)
        return fused_marlin_moe(**arguments, workspace=workspace)

    return run


def expert_order(tokens: int) -> Callable[[], torch.Tensor]:
    from sglang.srt.layers.moe.fused_moe_triton import moe_align_block_size

    torch.manual_seed(tokens)
    ids = torch.rand(tokens, EXPERTS, device="cuda").topk(TOP_K).indices.to(torch.int32)
    return lambda: moe_align_block_size(ids, 64, EXPERTS, return_inactive_prefix_count=True)[0]


def decode_top_k(length: int) -> Callable[[], torch.Tensor]:
    from sglang.kernels.ops.attention.dsv4.topk import plan_topk_v2, topk_transform_paged_v2

    torch.manual_seed(length)
    scores = torch.randn(4, (length + 255) // 256 * 256, device="cuda")
    lengths = torch.full((4,), length, dtype=torch.int32, device="cuda")

    def run() -> torch.Tensor:
        out = torch.empty((4, 512), dtype=torch.int32, device="cuda")
        topk_transform_paged_v2(scores, lengths, None, out, 1, plan_topk_v2(lengths))
        return out.sort(dim=1).values  # SGLang sorts them too

    return run


def main() -> None:
    result: dict[str, Any] = {"times": TIMES, "different": {}}

    def check(name: str, make: Callable[[], Callable[[], torch.Tensor]]) -> None:
        try:
            result["different"][name] = count_different(make())
        except Exception:  # noqa: BLE001, recorded: the other cases go on
            result["different"][name] = traceback.format_exc()[-800:]
        print(name, result["different"][name], flush=True)
        Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")

    sizes = (1, 16, 100, 160, 180, 224, 280, 500, 1000, 4000)
    for tokens in sizes:
        check(f"expert order, {tokens} tokens", functools.partial(expert_order, tokens))
        check(f"marlin experts, {tokens} tokens", functools.partial(marlin_moe, tokens))
    for length in (300, 600, 5000, 20000):
        check(f"top-k of decode, {length} candidates", functools.partial(decode_top_k, length))

    from sglang.kernels.ops.moe import moe_align

    moe_align.moe_align_block_size = functools.partial(align_in_order, moe_align.moe_align_block_size)
    for tokens in sizes:
        check(f"marlin experts in order, {tokens} tokens", functools.partial(marlin_moe, tokens))


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    main()
