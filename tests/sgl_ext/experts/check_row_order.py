"""Marlin's MoE of the installed wheel, run up to its first product: what order do its rows arrive in?

Its own code picks the block size, the alignment and its arguments. Only the CUDA kernels at the end of each
path are replaced here, by one that gives an expert's pairs in a drawn order, as atomic additions do. Run in a
process of its own: it patches the wheel.
"""

from __future__ import annotations

import inspect
import sys
import types
from importlib import metadata
from typing import Any

import torch

TOKENS, TOP_K, LOCAL, EVERYWHERE, HIDDEN, WIDTH = 300, 6, 48, 96, 64, 32


class FirstProduct(Exception):
    """Carries what the first product was given."""


def align_in_any_order(
    topk_ids: torch.Tensor,
    buckets: int,
    block: int,
    pairs: torch.Tensor,
    expert_ids: torch.Tensor,
    total: torch.Tensor,
    *_: object,
) -> None:
    """sgl_kernel's contract: id + 1 is the bucket, buckets fill whole blocks, ends are garbage."""
    ids = topk_ids.flatten()
    pairs.fill_(ids.numel())
    expert_ids.fill_(-77)
    draw, end = torch.Generator().manual_seed(5), 0
    for bucket in range(buckets):
        own = (ids + 1 == bucket).nonzero()[:, 0]
        own = own[torch.randperm(len(own), generator=draw)]
        pairs[end : end + len(own)] = own.to(torch.int32)
        blocks = -(-len(own) // block)
        expert_ids[end // block : end // block + blocks] = bucket - 1
        end += blocks * block
    total[0] = end


def stop_at_first_product(*args: Any, **_: Any) -> None:
    raise FirstProduct(args[10], args[11], args[12])  # sorted_token_ids, expert_ids, num_tokens_post_padded


def replace_kernels() -> Any:
    """The leaves that need CUDA; returns the module with Marlin's MoE, imported before any hook."""
    import sgl_kernel

    scalars: Any = types.ModuleType("sgl_kernel.scalar_type")
    scalars.scalar_types = types.SimpleNamespace(float4_e2m1f=0)
    sys.modules["sgl_kernel.scalar_type"] = scalars
    sgl_kernel.moe_align_block_size = align_in_any_order
    import sglang.srt.layers.moe.fused_moe_triton.fused_marlin_moe as marlin
    import sglang.srt.layers.moe.moe_runner.triton_utils.moe_align_block_size  # noqa: F401
    from sglang.kernels.ops.moe import moe_align, moe_align_small_numel
    from sglang.kernels.ops.moe import moe_align_block_size as ops_align

    align: Any = sys.modules["sglang.srt.layers.moe.moe_runner.triton_utils.moe_align_block_size"]
    align._is_cuda = True
    align.sgl_moe_align_block_size = ops_align
    align.SMALL_NUMEL_LIMIT = moe_align_small_numel.SMALL_NUMEL_LIMIT
    align.moe_align_small_numel = moe_align_small_numel.moe_align_small_numel
    moe_align_small_numel.is_arch_support_pdl = lambda: False
    moe_align._jit_moe_align_module = lambda *_: types.SimpleNamespace(
        moe_align_block_size=align_in_any_order
    )
    marlin.moe_wna16_marlin_gemm = stop_at_first_product
    torch.cuda.get_device_properties = lambda _=None: types.SimpleNamespace(multi_processor_count=48)
    torch.cuda.get_device_capability = lambda _=None: (12, 1)
    return marlin


def find_order(marlin: Any, topk_ids: torch.Tensor, groups: bool) -> str | None:
    """What find_disorder says of the rows that reach the first product."""
    from sgl_ext.hooks.expert_row_order import find_disorder

    tokens, experts = len(topk_ids), LOCAL if groups else EVERYWHERE
    scale = torch.zeros(1, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    mapping = torch.arange(EVERYWHERE, dtype=torch.int32)
    try:
        inspect.unwrap(marlin.fused_marlin_moe)(  # its custom op is registered for CUDA alone
            torch.zeros((tokens, HIDDEN), dtype=torch.bfloat16),
            torch.zeros((experts, HIDDEN // 16, 2 * WIDTH), dtype=torch.int32),
            torch.zeros((experts, WIDTH // 16, 2 * HIDDEN), dtype=torch.int32),
            scale,
            scale,
            torch.zeros((tokens, EVERYWHERE)),
            torch.ones(topk_ids.shape),
            topk_ids,
            global_num_experts=EVERYWHERE if groups else -1,
            expert_map=torch.where(mapping < LOCAL, mapping, -1) if groups else None,
            num_bits=4,
            clamp_limit=10.0,
        )
    except FirstProduct as seen:
        pairs, expert_ids, total = seen.args
        runs = expert_ids[: int(total[0]) // 8]
        block = next(size for size in (8, 16, 32, 48, 64) if tokens * TOP_K / experts / size < 0.9)
        assert len(runs), "no blocks"
        return find_disorder(topk_ids, (pairs, expert_ids, total), block)
    raise AssertionError("Marlin's MoE ended without a product")


def draw_ids(tokens: int, *, groups: bool) -> torch.Tensor:
    """Distinct experts for each token; with groups the other rank's are -1, as SGLang's dispatcher has it."""
    draw = torch.Generator().manual_seed(tokens)
    ids = torch.rand((tokens, EVERYWHERE), generator=draw).topk(TOP_K, dim=1).indices.to(torch.int32)
    return torch.where(ids < LOCAL, ids, -1) if groups else ids


def check_all() -> None:
    from sgl_ext.stand_ins import add_stand_ins

    add_stand_ins()
    marlin = replace_kernels()
    from sgl_ext.hooks.expert_row_order import HOOK
    from sgl_ext.install_hooks import install_hooks
    from sgl_ext.verify_hooks import find_problem

    cases = [(tokens, groups) for tokens in (2, 40, TOKENS) for groups in (True, False)]
    before = {case: find_order(marlin, draw_ids(case[0], groups=case[1]), case[1]) for case in cases}
    for case in cases:  # two tokens go to the kernel that keeps the order
        assert (before[case] is None) == (case[0] == 2), (case, before[case])
    installed = install_hooks([HOOK], metadata.version("sglang"))
    assert find_problem(installed[0]) is None
    for tokens, groups in cases:
        assert find_order(marlin, draw_ids(tokens, groups=groups), groups) is None, (tokens, groups)
    check_boot_proof(marlin)
    print("checked")


def check_boot_proof(marlin: Any) -> None:
    """The proof at boot passes with the hook, and names what goes around it."""
    import sglang.srt.layers.moe.fused_moe_triton as imported_by_marlin

    from sgl_ext.experts import boot_choice
    from sgl_ext.experts.expert_weights import ExpertShape
    from sgl_ext.hooks.expert_row_order import find_unordered_rows

    scheduler = types.SimpleNamespace(
        tp_worker=types.SimpleNamespace(model_runner=types.SimpleNamespace(device="cpu"))
    )
    assert find_unordered_rows(scheduler) is None  # no choice yet
    hooked = imported_by_marlin.moe_align_block_size
    for total in (LOCAL, EVERYWHERE):
        shape = ExpertShape(num_experts=LOCAL, hidden=8, width=32, top_k=TOP_K, total_experts=total)
        for name in ("marlin", "b12x"):
            candidate: Any = types.SimpleNamespace(name=name)
            choice: Any = types.SimpleNamespace(candidate=candidate, shape=shape)
            boot_choice._state()["choice"] = choice
            imported_by_marlin.moe_align_block_size = hooked
            assert find_unordered_rows(scheduler) is None
            imported_by_marlin.moe_align_block_size = hooked.__wrapped__
            problem = find_unordered_rows(scheduler)
            assert (problem is None) == (name != "marlin"), problem
            if problem is not None:
                assert problem.startswith("blocks of 8: pair ") and "out of order" in problem, problem
