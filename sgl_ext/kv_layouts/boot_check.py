"""Whether this machine's kernels write and read V4.1's KV layouts: asked once, before the pools exist.

Rows are drawn, stored by SGLang's kernel and read back in plain PyTorch; then attention over them is compared
with plain PyTorch over the same bytes, for a decode step and for a prefill, on a rank's query heads.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import torch

from sgl_ext.errors import CapabilityError, SettingError
from sgl_ext.kernels.sparse_attention import attend_rows
from sgl_ext.kv_layouts.packed_rows import DIM, V41, V41_FP4, RowFormat, empty_cache, load_rows

LAYOUT_VARIABLE = "SPARKCTL_KV_LAYOUT"
_CHOICES = ("v4", "v41")
# Formats alone give 0.03 and 0.12; bytes in another order give about 1.
_STORE_BOUNDS = {V41.name: 0.05, V41_FP4.name: 0.2}
_ATTENTION_BOUND = 0.08  # queries and probabilities are FP8 in these kernels
_WINDOW, _SELECTED, _TOKENS, _PAGE = 128, 512, 1024, 256
_QUERIES = (6, 200)
_SINK = 6.0  # about the logarithm of what 640 rows add up to, so that a missing sink shows
_REPEATS_CPU, _REPEATS_GPU = 1, 9

# (cache, slots, rows, page size, format): quantises rows into the cache.
Store = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int, RowFormat], None]
# SGLang's arguments of flash_mla_with_kvcache_sm120 -> (output, lse)
Attend = Callable[..., tuple[torch.Tensor, object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvVerdict:
    """errors: largest relative error of a row or of a query; times_s: median seconds of a call."""

    problem: str | None
    heads: int
    errors: dict[str, float]
    times_s: dict[str, float]

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def read_layout(environment: Mapping[str, str]) -> str:
    """v4 unless v41 is asked for. Raises SettingError."""
    choice = environment.get(LAYOUT_VARIABLE, "v4")
    if choice not in _CHOICES:
        raise SettingError(
            f"{LAYOUT_VARIABLE} must be one of {', '.join(_CHOICES)}, got {choice!r} (environment).",
            hint=f"unset {LAYOUT_VARIABLE}",
        )
    return choice


def check_layouts(
    store: Store,
    attend: Attend,
    heads: int,
    device: torch.device,
    page_sizes: tuple[int, int],
    queries: tuple[int, ...] = _QUERIES,
) -> KvVerdict:
    """Whatever the kernels raise is the verdict, by name. page_sizes: of the window, of the selected rows."""
    errors: dict[str, float] = {}
    times: dict[str, float] = {}
    try:
        problem = _prove(store, attend, heads, device, page_sizes, queries, errors, times)
    except Exception as error:  # noqa: BLE001 - a kernel may raise anything; it becomes the verdict
        problem = f"raised {type(error).__name__}: {error}"
    return KvVerdict(problem=problem, heads=heads, errors=errors, times_s=times)


def require_v41(store: Store, attend: Attend, heads: int, device: torch.device) -> None:
    """Raises CapabilityError where the layouts do not pass; the verdict stays for the rank report."""
    verdict = _state().get("verdict")
    if verdict is None:
        verdict = _state()["verdict"] = check_layouts(store, attend, heads, device, (_PAGE, _PAGE // 2))
    if verdict.problem is not None:
        raise CapabilityError(
            f"The KV layout v41 must pass its check since {LAYOUT_VARIABLE} asks for it, got "
            f"{verdict.problem}.",
            hint=f"unset {LAYOUT_VARIABLE}: the layout of 584 bytes a token needs no check",
        )


def describe_layout() -> dict[str, object]:
    """For the rank report."""
    verdict = _state().get("verdict")
    return {"layout": read_layout(os.environ), "check": None if verdict is None else verdict.as_json()}


@functools.cache
def _state() -> dict[str, KvVerdict]:
    return {}


def _prove(
    store: Store,
    attend: Attend,
    heads: int,
    device: torch.device,
    page_sizes: tuple[int, int],
    steps: tuple[int, ...],
    errors: dict[str, float],
    times: dict[str, float],
) -> str | None:
    draw = torch.Generator().manual_seed(20251130)
    caches, tables = [], []
    for form, page in zip((V41, V41_FP4), page_sizes, strict=True):
        rows = torch.randn((_TOKENS, DIM), generator=draw).to(device, torch.bfloat16)
        slots = torch.randperm(_TOKENS, generator=draw).to(device, torch.int32)
        cache = empty_cache(form, -(-_TOKENS // page), page, device)
        store(cache, slots, rows, page, form)
        seen = load_rows(cache, slots, page, form)
        error = _largest(seen, rows)
        errors[f"store {form.name}"] = error
        if not error <= _STORE_BOUNDS[form.name]:
            bound = _STORE_BOUNDS[form.name]
            return f"stored {form.name} rows: relative error must be at most {bound:g}, got {error:.3g}"
        caches.append(cache.view(-1, page, 1, form.bytes_per_token))
        tables.append(load_rows(cache, torch.arange(_TOKENS, device=device), page, form))
    for queries in steps:
        call = _draw_call(queries, heads, caches, draw, device)
        lists = torch.cat([call["indices"][:, 0], call["extra_indices_in_kvcache"][:, 0] + _TOKENS], dim=1)
        wanted = attend_rows(
            call["q"][:, 0].float(), torch.cat(tables), lists.long(), call["attn_sink"], DIM**-0.5
        )
        run = functools.partial(attend, **call, head_dim_v=DIM, softmax_scale=DIM**-0.5)
        seen = run()[0][:, 0]
        name = f"attention, {queries} queries"
        error = errors[name] = _largest(seen.flatten(0, 1), wanted.flatten(0, 1))
        if not error <= _ATTENTION_BOUND:
            return f"{name}: relative error must be at most {_ATTENTION_BOUND:g}, got {error:.3g}"
        times[name] = _time(run, device)
    return None


def _draw_call(
    queries: int, heads: int, caches: list[torch.Tensor], draw: torch.Generator, device: torch.device
) -> dict[str, torch.Tensor]:
    def lists(width: int) -> torch.Tensor:
        drawn = [torch.randperm(_TOKENS, generator=draw)[:width] for _ in range(queries)]
        return torch.stack(drawn).to(device, torch.int32).unsqueeze(1)

    def lengths(width: int) -> torch.Tensor:
        return torch.full((queries,), width, dtype=torch.int32, device=device)

    return {
        "q": torch.randn((queries, 1, heads, DIM), generator=draw).to(device, torch.bfloat16),
        "k_cache": caches[0],
        "indices": lists(_WINDOW),
        "topk_length": lengths(_WINDOW),
        "attn_sink": (_SINK + torch.randn(heads, generator=draw)).to(device),
        "extra_k_cache": caches[1],
        "extra_indices_in_kvcache": lists(_SELECTED),
        "extra_topk_length": lengths(_SELECTED),
    }


def _largest(seen: torch.Tensor, wanted: torch.Tensor) -> float:
    """The worst row's |seen - wanted| / |wanted|; NaN stays NaN, which no bound admits."""
    difference = (seen.float() - wanted.float()).norm(dim=-1)
    return float((difference / wanted.float().norm(dim=-1)).max())


def _time(run: Callable[[], object], device: torch.device) -> float:
    taken = []
    for _ in range(_REPEATS_GPU if device.type == "cuda" else _REPEATS_CPU):
        begin = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - begin)
    return sorted(taken)[len(taken) // 2]
