"""DSparkVerifyPlanner.schedule_layout: in compact mode each request verifies as many rows as planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sgl_ext.hook import Hook, HookKind
from sgl_ext.speculation.engine_speculation import current_step, get_speculation


def lay_out_planned(original: Callable[..., Any], planner: Any, **kwargs: Any) -> Any:
    """The planned layout, or None (a verify of whole blocks, capped by accept_draft_tokens) in the modes that
    have no other and for batches beyond the captured graphs."""
    step = current_step()
    if step is None:
        return original(planner, **kwargs)
    if not planner.is_compact_mode:
        return None
    speculation = get_speculation()
    assert speculation is not None
    widths = step.plan.widths
    return speculation.layouts.layout(widths, lambda on_device: build_layout(planner, widths, on_device))


def build_layout(planner: Any, widths: tuple[int, ...], on_device: torch.Tensor) -> Any:
    """SGLang's RaggedVerifyLayout of width + 1 rows for each request (on_device: int32 [B]), or None."""
    from sglang.srt.speculative.dspark_components.dspark_planner import (
        ragged_layout_exceeds_captured_grid,
        verify_layout_grid,
    )
    from sglang.srt.speculative.ragged_verify import RaggedVerifyLayout, round_up_grid

    lens = [width + 1 for width in widths]
    num_rows = sum(lens)
    if ragged_layout_exceeds_captured_grid(
        num_reqs=len(lens),
        verify_num_draft_tokens=planner.verify_num_draft_tokens,
        model_runner=planner.model_runner,
        tier_tokens_hint=num_rows,
    ):
        return None
    grid = verify_layout_grid(
        verify_lens_cpu=lens,
        ragged_verify_mode=planner._ragged_verify_mode,
        model_runner=planner.model_runner,
    )
    # Not from_verify_lens: it copies from pageable memory, which waits for all that the GPU was given before.
    return RaggedVerifyLayout._assemble_device(
        verify_lens=on_device,
        graph_num_tokens=round_up_grid(total=num_rows, grid=grid),
        verify_lens_cpu=lens,
        total_verify_tokens=num_rows,
    )


HOOK = Hook(
    target="sglang.srt.speculative.dspark_components.dspark_planner.DSparkVerifyPlanner.schedule_layout",
    kind=HookKind.AROUND,
    replacement=lay_out_planned,
    reason="SGLang's own lengths know no batch-level off, no wish of a request and no bound on what is lost",
    sglang_versions=("0.5.23",),
    fingerprint="a20eada4c24fdd44",
    remove_when="SGLang takes verify lengths from a plugin",
)
