"""The check of V4.1's KV layouts: kernels that are right pass, and each mistake is named."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch, which comes with the engine: make up installs it")

from sgl_ext.errors import SettingError  # noqa: E402
from sgl_ext.kernels.sparse_attention import attend_rows  # noqa: E402
from sgl_ext.kv_layouts.boot_check import LAYOUT_VARIABLE, check_layouts, read_layout  # noqa: E402
from sgl_ext.kv_layouts.packed_rows import (  # noqa: E402
    V41,
    V41_FP4,
    RowFormat,
    empty_cache,
    load_rows,
    store_rows,
)

CPU = torch.device("cpu")
PAGES = (64, 32)


def store(cache: Any, slots: Any, rows: Any, page_size: int, form: RowFormat) -> None:
    store_rows(cache, slots, rows, page_size, form)


def swap_halves(cache: Any, slots: Any, rows: Any, page_size: int, form: RowFormat) -> None:
    store_rows(cache, slots, rows, page_size, form)
    if form is V41_FP4:
        data = cache[:, : page_size * form.data_bytes]
        data.copy_((data >> 4) | (data << 4))


def interleave(cache: Any, slots: Any, rows: Any, page_size: int, form: RowFormat) -> None:
    """Scales right after each token's data: the bytes of V41_NEW in pages of V41."""
    own = torch.zeros_like(cache)
    store_rows(own, slots, rows, page_size, form)
    split = page_size * form.data_bytes
    data = own[:, :split].view(-1, page_size, form.data_bytes)
    scales = own[:, split:].view(-1, page_size, form.scale_bytes)
    cache.copy_(torch.cat([data, scales], dim=2).flatten(1))


def attend(*, sink: bool = True, swap: bool = False, **call: Any) -> tuple[Any, None]:
    tables = []
    for form, cache in ((V41, call["k_cache"]), (V41_FP4, call["extra_k_cache"])):
        pages, page = cache.shape[:2]
        tables.append(load_rows(cache.view(pages, -1), torch.arange(pages * page), page, form))
    first, second = call["indices"][:, 0].long(), call["extra_indices_in_kvcache"][:, 0].long()
    if swap:
        first, second = second, first
    rows = torch.cat([first, second + tables[0].shape[0]], dim=1)
    sinks = call["attn_sink"] if sink else torch.full_like(call["attn_sink"], -torch.inf)
    out = attend_rows(call["q"][:, 0], torch.cat(tables), rows, sinks, call["softmax_scale"])
    return out.unsqueeze(1), None


def problem(store: Any, attend: Any) -> str | None:
    return check_layouts(store, attend, 2, CPU, PAGES, (2, 5)).problem


def test_right_kernels_pass_with_their_errors_and_times() -> None:
    verdict = check_layouts(store, attend, 2, CPU, PAGES, (2, 5))
    assert verdict.problem is None
    assert verdict.errors["store v41"] < 0.04 < verdict.errors["store v41_fp4"] < 0.13
    assert all(verdict.errors[name] < 0.01 and verdict.times_s[name] > 0 for name in verdict.times_s)
    assert len(verdict.times_s) == 2


def test_each_mistake_is_named() -> None:
    assert "stored v41_fp4 rows: relative error" in str(problem(swap_halves, attend))
    assert "stored v41 rows: relative error" in str(problem(interleave, attend))
    assert "attention, 2 queries: relative error" in str(
        problem(store, lambda **call: attend(swap=True, **call))
    )
    no_sink = str(problem(store, lambda **call: attend(sink=call["q"].shape[0] == 2, **call)))
    assert "attention, 5 queries: relative error" in no_sink

    def raises(**_: Any) -> Any:
        raise RuntimeError("no kernel image")

    assert problem(store, raises) == "raised RuntimeError: no kernel image"
    assert "got nan" in str(problem(store, lambda **call: (attend(**call)[0] * float("nan"), None)))


@pytest.mark.parametrize("form", [V41, V41_FP4])
def test_values_of_the_format_are_kept_exactly(form: RowFormat) -> None:
    codes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0, 6.0]
    scale = torch.tensor([2.0**-3, 1.0, 8.0]).unsqueeze(1)
    rows = (torch.tensor(codes).repeat(32) * scale).to(torch.bfloat16)
    cache = empty_cache(form, 2, 2, CPU)
    assert cache.shape[1] == 2 * {V41: 528, V41_FP4: 288}[form]
    slots = torch.tensor([3, 0, 2])
    store_rows(cache, slots, rows, 2, form)
    assert torch.equal(load_rows(cache, slots, 2, form), rows)


def test_only_a_known_layout_is_taken() -> None:
    assert read_layout({}) == "v4" and read_layout({LAYOUT_VARIABLE: "v41"}) == "v41"
    with pytest.raises(SettingError, match="must be one of v4, v41, got 'fp4'"):
        read_layout({LAYOUT_VARIABLE: "fp4"})
