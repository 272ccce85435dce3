"""build_ragged_verify_window_triton: the rows of a ragged verify are taken out of the step's window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sgl_ext.errors import EffectError
from sgl_ext.hook import Hook, HookKind
from sgl_ext.speculation.engine_speculation import get_speculation
from sgl_ext.speculation.verify_rows import VerifyRows, list_rows

MODULE = "sglang.kernels.ops.speculative.dspark.dspark_verify_window"


def take_rows(original: Callable[..., Any], **kwargs: Any) -> Any:
    """SGLang's RaggedVerifyWindow of T rows: positions, slots and token ids, all int64 [T].

    An engine's first ones are compared with SGLang's own, which waits for the GPU. Raises EffectError.
    """
    speculation, layout = get_speculation(), kwargs["layout"]
    step = None if speculation is None else speculation.step
    window = None if step is None else step.window
    if speculation is None or window is None or layout.verify_lens_cpu is None:
        return original(**kwargs)
    stride = kwargs["verify_num_draft_tokens"]
    rows: VerifyRows = speculation.layouts.keep(
        layout,
        ("rows", stride),
        lambda: list_rows(layout.verify_lens_cpu, stride, layout.graph_num_tokens, layout.verify_lens.device),
    )
    found = _pack(window, rows, kwargs["draft_block_ids"], kwargs["draft_tokens"])
    if speculation.windows_to_prove:
        speculation.windows_to_prove -= 1
        _prove(found, original(**kwargs))
    return found


def _pack(window: Any, rows: VerifyRows, block_ids: torch.Tensor, draft_tokens: torch.Tensor) -> Any:
    from sglang.kernels.ops.speculative.dspark.dspark_verify_window import RaggedVerifyWindow

    ids = torch.cat([block_ids[:, :1], draft_tokens], dim=1)
    return RaggedVerifyWindow(
        positions=rows.take(window.positions_2d),
        verify_cache_loc=rows.take(window.verify_cache_loc),
        verify_ids=rows.take(ids),
        window_index=rows.columns,  # None: the whole window, as for a static verify
    )


def _prove(found: Any, wanted: Any) -> None:
    for name in ("positions", "verify_cache_loc", "verify_ids"):
        ours, theirs = getattr(found, name), getattr(wanted, name)
        if ours.dtype != theirs.dtype or not torch.equal(ours, theirs):
            raise EffectError(
                f"The {name} of a ragged verify must be SGLang's {theirs.tolist()} ({theirs.dtype}), got "
                f"{ours.tolist()} ({ours.dtype}).",
                hint="report it with the log of this rank; until then unset SPARKCTL_SPEC",
            )


HOOK = Hook(
    target=f"{MODULE}.build_ragged_verify_window_triton",
    kind=HookKind.AROUND,
    replacement=take_rows,
    reason="some twenty launches in each step find rows that the widths alone decide",
    sglang_versions=("0.5.23",),
    fingerprint="bfcd8d29b94868cc",
    remove_when="SGLang takes a ragged verify's rows from its window",
)
