"""Whether this machine's kernels write and read the KV layout: asked once, by all ranks, before the model.

Rows are drawn, stored by SGLang's kernel and read back in plain PyTorch; then sparse attention over them is
compared with plain PyTorch over the same bytes: a decode step and a prefill, layers with the window alone and
with each compress ratio, on a rank's query heads.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from sgl_ext.errors import CapabilityError, SettingError
from sgl_ext.experts.candidate import Presence
from sgl_ext.experts.choose import AUTO, Subject, Vote, choose_backend
from sgl_ext.experts.gather_votes import gather_votes
from sgl_ext.experts.packages import find_packages
from sgl_ext.experts.self_check import Verdict, judge, time_call
from sgl_ext.kv_layouts.attention_cases import (
    DECODE_TOKENS,
    TOKENS,
    AttentionShape,
    DrawnCache,
    draw_call,
    rank_shape,
    reference,
)
from sgl_ext.kv_layouts.packed_rows import DIM, V4, V41, V41_FP4, RowFormat, empty_cache, load_rows

LAYOUT_VARIABLE = "SPARKCTL_KV_LAYOUT"
# Formats alone give 0.03, 0.03 and 0.12; bytes in another order give about 1.
_STORE_BOUNDS = {V4.name: 0.05, V41.name: 0.05, V41_FP4.name: 0.2}
_STEPS = (6, 200)  # queries of a decode step and of a prefill
_SEED = 20251130

KV_LAYOUT = Subject(
    name="KV layout",
    kind="KV layout",
    key="extensions.kv_layout",
    page="docs/sm12x.md",
    error=CapabilityError,
    advice="set extensions.kv_layout of the recipe to the other layout (v4 or v41), which is checked alike",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The formats of the sliding window and of the compressed rows that go together."""

    name: str
    window: RowFormat
    selected: RowFormat
    error_bound: float = 0.08  # queries and probabilities are FP8 in these kernels

    @property
    def size(self) -> int:
        """Bytes of a token in the window and of a compressed row: what `auto` keeps small."""
        return self.window.bytes_per_token + self.selected.bytes_per_token


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout(name="v4", window=V4, selected=V4),
        Layout(name="v41", window=V41, selected=V41_FP4),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutKernels:
    """store: quantises rows into a cache at slots. attend: SGLang's arguments of flash_mla_with_kvcache_sm120
    -> (output [T, 1, H, D], lse).
    """

    store: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int, RowFormat], None]
    attend: Callable[..., tuple[torch.Tensor, object]]


def read_layout(environment: Mapping[str, str]) -> str:
    """v4 unless v41, or auto for the smallest that passes, is asked for. Raises SettingError."""
    choice = environment.get(LAYOUT_VARIABLE, "v4")
    if choice not in (*LAYOUTS, AUTO):
        raise SettingError(
            f"{LAYOUT_VARIABLE} must be one of {', '.join((*LAYOUTS, AUTO))}, got {choice!r} (environment).",
            hint=f"unset {LAYOUT_VARIABLE}",
        )
    return choice


def check_layout(
    layout: Layout,
    kernels: LayoutKernels,
    presence: Presence,
    shape: AttentionShape,
    device: torch.device,
    steps: tuple[int, ...] | None = None,
) -> Verdict:
    """Whatever a kernel raises is the verdict, by name. errors: the worst row or query and head of each case;
    times_s: seconds of all cases of a step.
    """
    prove = functools.partial(_prove, layout, kernels, shape, device, steps or _STEPS)
    return judge(layout, presence, prove)


def require_layout(
    kernels: LayoutKernels,
    config: Any,
    parallel: Any,
    *,
    device: torch.device,
    group: Any,
    has_draft: bool = False,
) -> None:
    """Checks the layout that the environment asks for, once per process; with auto all of them, and the
    smallest that passed is taken. Raises CapabilityError on every rank where one rank's kernels do not pass,
    where ranks found different ones to pass, or were asked for different layouts. Blocks until all ranks have
    voted.
    """
    if _state():
        return
    wanted = read_layout(os.environ)
    shape = rank_shape(config, parallel.tp_size, has_draft=has_draft)
    presence = find_packages({"flashinfer-python": "0.7.2", "sglang": "0.5.23"})
    with torch.inference_mode():
        verdicts = tuple(
            check_layout(layout, kernels, presence, shape, device)
            for layout in LAYOUTS.values()
            if wanted in (AUTO, layout.name)
        )
    own = Vote(rank=parallel.tp_rank, host=socket.gethostname(), wanted=wanted, verdicts=verdicts)
    chosen = choose_backend(gather_votes(own, group), KV_LAYOUT, cost=lambda name: LAYOUTS[name].size)
    _state().update(
        chosen=chosen,
        heads=shape.heads,
        draft_heads=shape.draft_heads,
        selected=shape.selected,
        verdicts=[verdict.as_json() for verdict in verdicts],
    )


def proved_layout() -> str:
    """The layout that passed on all ranks. Raises CapabilityError where none was checked yet."""
    if not _state():
        raise CapabilityError(
            "The KV layout must be checked before the pools are made, got pools first.",
            hint="report it with SGLang's version (docs/sm12x.md)",
        )
    return str(_state()["chosen"])


def describe_layout() -> dict[str, object]:
    """For the rank report: layout, errors with their bounds, and times."""
    wanted = read_layout(os.environ)
    return {
        "layout": _state().get("chosen"),
        "wanted": wanted,
        "store_bounds": _STORE_BOUNDS,
        "check": dict(_state()) or None,
    }


@functools.cache
def _state() -> dict[str, object]:
    return {}


def _prove(
    layout: Layout,
    kernels: LayoutKernels,
    shape: AttentionShape,
    device: torch.device,
    steps: tuple[int, ...],
    errors: dict[str, float],
    times: dict[str, float],
) -> str | None:
    window, problem = _fill(kernels, layout.window, shape.page, device, _SEED, errors)
    for queries in steps if shape.draft_heads and problem is None else ():
        if queries <= DECODE_TOKENS:  # longer calls come with the rank's own heads: the window's case
            call = draw_call(shape, queries, window, None, device, of_draft=True)
            problem = problem or _attend(kernels, layout, shape, call, (window, None), "draft", errors, times)
    for ratio in shape.ratios if problem is None else ():
        extra = None
        if ratio:
            page, seed = shape.page_rows(ratio), _SEED + ratio  # other rows than the window's
            extra, problem = _fill(kernels, layout.selected, page, device, seed, errors)
        for queries in steps if problem is None else ():
            call = draw_call(shape, queries, window, extra, device)
            kind = f"ratio {ratio}" if ratio else "window"
            problem = problem or _attend(kernels, layout, shape, call, (window, extra), kind, errors, times)
        if problem is not None:
            break
    return problem


def _attend(
    kernels: LayoutKernels,
    layout: Layout,
    shape: AttentionShape,
    call: dict[str, Any],
    caches: tuple[DrawnCache, DrawnCache | None],
    kind: str,
    errors: dict[str, float],
    times: dict[str, float],
) -> str | None:
    """One call against plain PyTorch; its time joins those of the step."""
    step = f"{call['q'].shape[0]} queries"
    run = functools.partial(kernels.attend, **call)
    seen = run()[0][:, 0, : shape.heads]
    wanted = reference(call, shape.heads, *caches)
    problem = _compare(seen, wanted, f"{step}, {kind}", layout.error_bound, errors)
    times[step] = times.get(step, 0.0) + time_call(run, seen.device)
    return problem


def _fill(
    kernels: LayoutKernels,
    form: RowFormat,
    page_size: int,
    device: torch.device,
    seed: int,
    errors: dict[str, float],
) -> tuple[DrawnCache, str | None]:
    """A cache of drawn rows, every slot in use, and what is wrong with what the kernel stored."""
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randn((TOKENS, DIM), generator=draw).to(device, torch.bfloat16)
    slots = torch.randperm(TOKENS, generator=draw).to(device, torch.int32)
    cache = empty_cache(form, -(-TOKENS // page_size), page_size, device)
    kernels.store(cache, slots, rows, page_size, form)
    name, bound = f"stored {form.name} rows, pages of {page_size}", _STORE_BOUNDS[form.name]
    problem = _compare(load_rows(cache, slots, page_size, form), rows, name, bound, errors)
    return DrawnCache(raw=cache, page_size=page_size, form=form), problem


def _compare(
    seen: torch.Tensor, wanted: torch.Tensor, name: str, bound: float, errors: dict[str, float]
) -> str | None:
    """Notes the worst |seen - wanted| / |wanted|; NaN stays NaN, which no bound admits."""
    if seen.shape != wanted.shape:
        return f"{name}: must give {tuple(wanted.shape)}, got {tuple(seen.shape)}"
    difference = (seen.float() - wanted.float()).norm(dim=-1)
    errors[name] = error = float((difference / wanted.float().norm(dim=-1)).max())
    if not error <= bound:
        return f"{name}: relative error must be at most {bound:g}, got {error:.3g}"
    return None
