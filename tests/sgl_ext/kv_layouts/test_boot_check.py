"""The check of V4.1's KV layouts: kernels that are right pass, and each mistake is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch, which comes with the engine: make up installs it")

from sgl_ext.errors import CapabilityError, SettingError  # noqa: E402
from sgl_ext.experts.candidate import Presence  # noqa: E402
from sgl_ext.experts.choose import Vote, choose_backend  # noqa: E402
from sgl_ext.hooks import kv_layout_attention, kv_layout_choice  # noqa: E402
from sgl_ext.kernels.sparse_attention import attend_rows  # noqa: E402
from sgl_ext.kv_layouts import boot_check  # noqa: E402
from sgl_ext.kv_layouts.attention_cases import AttentionShape, rank_shape  # noqa: E402
from sgl_ext.kv_layouts.boot_check import (  # noqa: E402
    KV_LAYOUT,
    LAYOUT_VARIABLE,
    LAYOUTS,
    LayoutKernels,
    check_layout,
    describe_layout,
    proved_layout,
    read_layout,
    require_layout,
)
from sgl_ext.kv_layouts.packed_rows import (  # noqa: E402
    V4,
    V41,
    V41_FP4,
    RowFormat,
    empty_cache,
    load_rows,
    store_rows,
)
from tests.sgl_ext.gloo_ranks import answers_of_ranks  # noqa: E402

CPU = torch.device("cpu")
SHAPE = AttentionShape(heads=3, window=128, selected=192, ratios=(0, 1, 2), page=64)
WITH_DRAFT = replace(SHAPE, draft_heads=8)
HERE = Presence(missing=None, versions={"flashinfer-python": "0.7.2"})
STEPS = (3, 66)
FORMATS = {V4.bytes_per_token: V4, V41.bytes_per_token: V41, V41_FP4.bytes_per_token: V41_FP4}


def swap_halves(cache: Any, slots: Any, rows: Any, page_size: int, form: RowFormat) -> None:
    store_rows(cache, slots, rows, page_size, form)
    if form is V41_FP4:
        data = cache[:, : page_size * form.data_bytes]
        data.copy_((data >> 4) | (data << 4))


def interleave(cache: Any, slots: Any, rows: Any, page_size: int, form: RowFormat) -> None:
    """Scales right after each token's data: the bytes of V41_NEW in pages of V41."""
    own = torch.zeros_like(cache)
    store_rows(own, slots, rows, page_size, form)
    split, end = page_size * form.data_bytes, page_size * form.bytes_per_token
    data = own[:, :split].view(-1, page_size, form.data_bytes)
    scales = own[:, split:end].view(-1, page_size, form.scale_bytes)
    cache[:, :end] = torch.cat([data, scales], dim=2).flatten(1)


def attend(**call: Any) -> tuple[Any, None]:
    """What a right kernel does with SGLang's arguments, in plain PyTorch."""
    tables, lists, before = [], [], 0
    for cache, indices, lengths in (
        ("k_cache", "indices", "topk_length"),
        ("extra_k_cache", "extra_indices_in_kvcache", "extra_topk_length"),
    ):
        if call.get(cache) is None:
            continue
        pages, page, _, size = call[cache].shape
        raw = call[cache].as_strided((pages, call[cache].stride(0)), (call[cache].stride(0), 1))
        tables.append(load_rows(raw, torch.arange(pages * page), page, FORMATS[size]))
        rows = call[indices][:, 0].long()
        ended = torch.arange(rows.shape[1]) >= call[lengths].unsqueeze(1)
        lists.append(torch.where((rows >= 0) & ~ended, rows + before, -1))
        before += pages * page
    sink, scale = call["attn_sink"], call["softmax_scale"]
    out = attend_rows(call["q"][:, 0], torch.cat(tables), torch.cat(lists, dim=1), sink, scale)
    return out.unsqueeze(1), None


def change(**changes: Any) -> Any:
    """The right kernel, called with arguments that are changed by name."""
    return lambda **call: attend(**(call | {name: make(call) for name, make in changes.items()}))


def check(layout: str = "v4", store: Any = store_rows, attend: Any = attend, shape: Any = SHAPE) -> Any:
    kernels = LayoutKernels(store=store, attend=attend)
    return check_layout(LAYOUTS[layout], kernels, HERE, shape, CPU, STEPS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_right_kernels_pass_with_their_errors_and_times(layout: str) -> None:
    verdict = check(layout)
    assert verdict.passed, verdict.problem
    stored = {name: error for name, error in verdict.errors.items() if name.startswith("stored")}
    bounds = {"v4": (0.02, 0.04), "v41": (0.02, 0.04), "v41_fp4": (0.05, 0.13)}
    for name, error in stored.items():
        lowest, highest = bounds[name.split()[1]]
        assert lowest < error < highest, name
    attended = set(verdict.errors) - set(stored)
    assert attended == {f"{n} queries, {kind}" for n in STEPS for kind in ("window", "ratio 1", "ratio 2")}
    assert max(verdict.errors[name] for name in attended) < 0.01
    assert set(verdict.times_s) == {f"{n} queries" for n in STEPS} and min(verdict.times_s.values()) > 0


MISTAKES = {
    "a missing sink": change(attn_sink=lambda call: torch.full_like(call["attn_sink"], -torch.inf)),
    "the caches swapped": change(
        k_cache=lambda call: call.get("extra_k_cache", call["k_cache"]),
        extra_k_cache=lambda call: None if "extra_k_cache" not in call else call["k_cache"],
    ),
    "selected rows left out": change(extra_k_cache=lambda call: None),
    "rows of the slot before": change(indices=lambda call: (call["indices"] - 1).clamp_min(0)),
    "lengths ignored": change(
        indices=lambda call: call["indices"].clamp_min(0),
        topk_length=lambda call: torch.full_like(call["topk_length"], SHAPE.window),
    ),
    "heads in another order": change(q=lambda call: call["q"].roll(1, 2)),
    "not finite": lambda **call: (attend(**call)[0] * float("nan"), None),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_of_attention_is_named(mistake: str) -> None:
    verdict = check(attend=MISTAKES[mistake])
    assert "queries" in str(verdict.problem) and "relative error must be at most 0.08" in verdict.problem
    assert verdict.times_s == {}


def test_a_drafts_queries_are_checked_in_their_own_width_with_what_their_buffer_held() -> None:
    seen = []

    def watch(**call: Any) -> Any:
        seen.append((call["q"].shape[2], float(call["q"][:, 0, 3:].abs().sum())))
        return attend(**call)

    verdict = check(attend=watch, shape=WITH_DRAFT)
    assert verdict.passed and 0 < verdict.errors["3 queries, draft"] < 0.01
    assert "66 queries, draft" not in verdict.errors  # they come with the rank's own heads
    assert seen[0][0] == 8 and seen[0][1] > 0  # the draft comes first; other decode heads are padded by zeros
    assert {(width, left_over) for width, left_over in seen if left_over == 0} == {(8, 0.0), (3, 0.0)}

    def leak(**call: Any) -> Any:
        q = call["q"] + 0.1 * call["q"].roll(-3, 2) if call["q"].shape[2] == 8 else call["q"]
        return attend(**(call | {"q": q}))

    assert "3 queries, draft: relative error" in str(check(attend=leak, shape=WITH_DRAFT).problem)


def test_a_mistake_in_prefill_alone_is_named() -> None:
    def no_sink_in_prefill(**call: Any) -> Any:
        return (attend if call["q"].shape[0] == STEPS[0] else MISTAKES["a missing sink"])(**call)

    assert "66 queries, window: relative error" in str(check(attend=no_sink_in_prefill).problem)


def test_each_mistake_of_a_store_and_what_is_raised_is_named() -> None:
    assert "stored v41_fp4 rows, pages of 64: relative error" in str(check("v41", swap_halves).problem)
    assert "stored v41 rows, pages of 64: relative error" in str(check("v41", interleave).problem)
    assert "stored v4 rows, pages of 64: relative error" in str(check("v4", interleave).problem)

    def raises(**_: Any) -> Any:
        raise RuntimeError("no kernel image")

    assert check(attend=raises).problem == "raised RuntimeError: no kernel image"


def test_a_ranks_shape_is_that_of_the_padded_config() -> None:
    config = SimpleNamespace(
        num_attention_heads=72, sliding_window=128, index_topk=512, compress_ratios=[0, 0, 2, 1, 0]
    )
    shape = AttentionShape(heads=24, window=128, selected=512, ratios=(0, 1, 2))
    assert rank_shape(config, 3) == shape
    assert rank_shape(config, 3, has_draft=True) == replace(shape, draft_heads=64)
    assert rank_shape(config, 1, has_draft=True).draft_heads == 0  # 72 heads are wider than the draft's


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """require_layout with small shapes; no package is asked for."""
    monkeypatch.setattr(boot_check, "rank_shape", lambda config, tp_size, has_draft: SHAPE)
    monkeypatch.setattr(boot_check, "find_packages", lambda wanted: HERE)
    monkeypatch.setattr(boot_check, "_STEPS", STEPS)
    boot_check._state().clear()

    def require(attend: Any, store: Any = store_rows) -> None:
        kernels = LayoutKernels(store=store, attend=attend)
        require_layout(kernels, None, SimpleNamespace(tp_size=1, tp_rank=0), device=CPU, group=None)

    yield require
    boot_check._state().clear()


def test_a_layout_that_passed_is_reported_and_given_to_the_pools(asked: Any) -> None:
    with pytest.raises(CapabilityError, match="must be checked before the pools"):
        kv_layout_choice.choose_layout(lambda: "stock")
    asked(attend)
    assert kv_layout_choice.choose_layout(lambda: "stock") == "stock"
    told: Any = describe_layout()
    assert told["layout"] == "v4" and told["check"]["heads"] == 3
    (verdict,) = told["check"]["verdicts"]
    assert verdict["problem"] is None and verdict["error_bound"] == 0.08 and len(verdict["errors"]) == 8


def test_a_layout_that_fails_is_refused_by_name(asked: Any) -> None:
    with pytest.raises(CapabilityError, match=r"The KV layout v4 must pass its check .*3 queries") as caught:
        asked(MISTAKES["a missing sink"])
    assert "extensions.kv_layout" in caught.value.hint
    assert describe_layout()["check"] is None


def no_fp4(cache: Any, slots: Any, rows: Any, page_size: int, form: RowFormat) -> None:
    if form is V41_FP4:
        raise RuntimeError("no kernel image")
    store_rows(cache, slots, rows, page_size, form)


def test_auto_takes_the_smallest_layout_that_passes(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LAYOUT_VARIABLE, "auto")
    assert LAYOUTS["v41"].size == 528 + 288 < LAYOUTS["v4"].size == 2 * 584
    asked(attend)
    assert proved_layout() == "v41"
    told: Any = describe_layout()
    assert (told["layout"], told["wanted"]) == ("v41", "auto")
    assert [item["name"] for item in told["check"]["verdicts"]] == ["v4", "v41"]
    boot_check._state().clear()
    asked(attend, no_fp4)
    assert proved_layout() == "v4"
    told = describe_layout()
    assert "no kernel image" in told["check"]["verdicts"][1]["problem"]
    boot_check._state().clear()
    with pytest.raises(CapabilityError, match=r"At least one KV layout must pass .*v4: 3 queries.*v41: "):
        asked(MISTAKES["a missing sink"])


@pytest.mark.parametrize(("ranks", "bad"), [(2, None), (3, 2)])
def test_gloo_ranks_take_one_layout_or_all_end_by_name(
    ranks: int, bad: int | None, asked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LAYOUT_VARIABLE, "auto")

    def vote(rank: int, group: Any) -> str:
        kernels = LayoutKernels(store=no_fp4 if rank == bad else store_rows, attend=attend)
        parallel = SimpleNamespace(tp_size=ranks, tp_rank=rank)
        require_layout(kernels, None, parallel, device=CPU, group=group)
        return proved_layout()

    (answer,) = set(answers_of_ranks(ranks, vote, tmp_path / "store"))
    if bad is None:
        assert answer == "v41"
    else:
        assert answer.startswith("Every rank must come to the same verdict on the KV layout v41, got passed")
        assert f"no kernel image with flashinfer-python 0.7.2 (rank {bad} on " in answer


def test_one_rank_that_fails_is_named_on_every_rank() -> None:
    verdicts = (check(), check(attend=MISTAKES["not finite"]))
    votes = [
        Vote(rank=rank, host=f"spark-{rank}", wanted="v4", verdicts=(verdict,))
        for rank, verdict in enumerate(verdicts)
    ]
    with pytest.raises(CapabilityError, match=r"same verdict on the KV layout v4.*rank 1 on spark-1"):
        choose_backend(votes, KV_LAYOUT)


def test_heads_without_a_kernel_are_padded_and_cut_again() -> None:
    seen = []

    def kernel(**call: Any) -> Any:
        seen.append(call["q"].shape[-2])
        return attend(**call)

    def padded(**call: Any) -> Any:
        assert call["q"].shape[-2] == (8 if call["q"].shape[0] <= 64 else 3)
        return kv_layout_attention.attend(kernel, **call)

    assert check(attend=padded).passed and set(seen) == {8}


@pytest.mark.parametrize("form", [V41, V41_FP4])
def test_values_of_the_format_are_kept_exactly(form: RowFormat) -> None:
    codes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0, 6.0]
    scale = torch.tensor([2.0**-3, 1.0, 8.0]).unsqueeze(1)
    rows = (torch.tensor(codes).repeat(32) * scale).to(torch.bfloat16)
    cache = empty_cache(form, 2, 2, CPU)
    assert form.bytes_per_token == {V41: 528, V41_FP4: 288}[form]
    slots = torch.tensor([3, 0, 2])
    store_rows(cache, slots, rows, 2, form)
    assert torch.equal(load_rows(cache, slots, 2, form), rows)


def test_only_a_known_layout_is_taken() -> None:
    assert read_layout({}) == "v4" and read_layout({LAYOUT_VARIABLE: "v41"}) == "v41"
    assert read_layout({LAYOUT_VARIABLE: "auto"}) == "auto"
    with pytest.raises(SettingError, match="must be one of v4, v41, auto, got 'fp4'"):
        read_layout({LAYOUT_VARIABLE: "fp4"})
