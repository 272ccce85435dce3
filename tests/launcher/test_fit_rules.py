"""Splits, pools, budgets and what they forbid."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from launcher.compose_recipe import load_recipe
from launcher.errors import UsageError
from launcher.find_recipe import shipped_recipes
from launcher.fit.constants import GB, GIB, Constant, constants
from launcher.fit.fit_recipe import WhatIf, can_fit, fit_recipe
from launcher.fit.fit_rules import budget_problems, largest_safe_chunk, largest_safe_pool, min_mem_fraction
from launcher.fit.kv_pool import bytes_per_token, swa_tokens
from launcher.fit.memory_budget import (
    MemorySettings,
    budget_rank,
    engine_pool_tokens,
    served_tokens,
    with_chunk,
)
from launcher.fit.model_shape import expert_bytes
from launcher.fit.rank_weights import Split, engram_rank_bytes, plan_split, rank_part_bytes, split_problems
from launcher.fit.weight_classes import Part
from launcher.recipe import Recipe
from tests.launcher.fit_settings import SHAPE, server

CONFIG = SHAPE.config


def checks(settings: MemorySettings, level: str = "refuse") -> list[str]:
    return [problem.check for problem in budget_problems(SHAPE, settings) if problem.level == level]


def problems_of(split: Split, backend: str = "auto") -> list[str]:
    return [problem.check for problem in split_problems(CONFIG, split, expert_backend=backend)]


def test_every_constant_names_its_source() -> None:
    for name in type(constants()).model_fields:
        constant = getattr(constants(), name)
        assert isinstance(constant, Constant)
        assert "http" in constant.source or "index text" in constant.source, name


def test_one_expert_has_its_published_size() -> None:
    assert expert_bytes(CONFIG, 2304) == 18_800_640


@pytest.mark.parametrize(
    ("tp", "ep", "extra", "found"),
    [
        (2, 1, {}, []),
        (3, 1, {}, []),
        (3, 1, {"heads": 96}, []),
        (3, 1, {"heads": 64}, ["head-split"]),
        (3, 1, {"heads": 80}, ["head-split"]),
        (3, 3, {}, ["draft-experts"]),
        (3, 3, {"draft_experts": 129}, []),
        (3, 3, {"draft_experts": 126}, ["draft-experts"]),
        (4, 1, {}, ["expert-width"]),
        (4, 1, {"expert_width": 640}, []),
        (4, 1, {"expert_width": 512}, ["expert-width"]),
        (4, 2, {}, []),
        (4, 4, {}, []),
        (4, 3, {}, ["expert-split", "draft-experts", "expert-width"]),
        (8, 1, {}, ["expert-width"]),
        (8, 2, {}, ["expert-width"]),
        (8, 4, {}, []),
    ],
)
def test_splits(tp: int, ep: int, extra: dict[str, int], found: list[str]) -> None:
    assert problems_of(plan_split(CONFIG, tp=tp, ep=ep, **extra)) == found


def test_other_kernels_take_other_widths() -> None:
    assert problems_of(plan_split(CONFIG, tp=4, ep=1), "b12x") == []


def test_three_ranks_pad_to_nine_groups_and_twelve_on_request() -> None:
    assert plan_split(CONFIG, tp=3, ep=1).head_groups == 9
    assert plan_split(CONFIG, tp=3, ep=1, heads=96).head_groups == 12


def test_vocabulary_is_padded_to_64_rows_a_rank() -> None:
    size = rank_part_bytes(SHAPE, plan_split(CONFIG, tp=3, ep=1))[Part.VOCABULARY]
    assert size == 2 * 43136 * 5120 * 2


def test_padding_to_640_costs_a_ninth_of_the_experts() -> None:
    exact = rank_part_bytes(SHAPE, plan_split(CONFIG, tp=4, ep=2))[Part.ROUTED]
    padded = rank_part_bytes(SHAPE, plan_split(CONFIG, tp=4, ep=1, expert_width=640))[Part.ROUTED]
    assert padded * 9 == exact * 10


@given(tp=st.sampled_from([1, 2, 3, 4, 6, 8]), ep=st.sampled_from([1, 2, 3, 4]))
def test_ranks_together_hold_at_least_what_is_stored(tp: int, ep: int) -> None:
    split = plan_split(CONFIG, tp=tp, ep=min(ep, tp))
    for part, size in rank_part_bytes(SHAPE, split).items():
        # One byte for the rounding of each rank.
        assert (size + 1) * tp >= SHAPE.part_bytes[part], part


@examples(deadline=None)  # a busy machine is no failure
@given(
    chunk=st.integers(256, 16000),
    more=st.integers(1, 4000),
    context=st.integers(1024, 1 << 20),
    tokens=st.integers(256, 8_000_000),
)
def test_more_of_anything_leaves_less(chunk: int, more: int, context: int, tokens: int) -> None:
    base = server(tp=4, ep=2, chunk=chunk, context=context, tokens=tokens)
    left = budget_rank(SHAPE, base, 0).left_bytes
    for other in (
        with_chunk(base, chunk + more),
        dataclasses.replace(base, context_tokens=context + more),
        dataclasses.replace(base, pinned_tokens=tokens + 256 * more),
        dataclasses.replace(base, nccl_buffers_small=False),
        dataclasses.replace(base, engram_resident=True),
    ):
        assert budget_rank(SHAPE, other, 0).left_bytes <= left
    assert budget_rank(SHAPE, base, 1).left_bytes > left  # a worker has no head-only processes


@examples(deadline=None)  # a busy machine is no failure
@given(
    tp=st.sampled_from([3, 4]),
    context=st.sampled_from([65536, 262144, 524288]),
    tokens=st.integers(262144, 3_000_000),
)
def test_safe_values_are_safe_and_the_next_ones_are_not(tp: int, context: int, tokens: int) -> None:
    settings = server(tp=tp, ep=1 if tp == 3 else 2, context=context, tokens=tokens, chunk=512)
    floor = constants().floor_gb.value * GB
    pool = largest_safe_pool(SHAPE, settings)
    if pool:
        assert budget_rank(SHAPE, settings, 0, tokens=pool).left_bytes >= floor
        assert budget_rank(SHAPE, settings, 0, tokens=pool + 256).left_bytes < floor
    chunk = largest_safe_chunk(SHAPE, settings)
    if chunk:
        safe = with_chunk(settings, chunk)
        assert "chunk-times-context" not in checks(safe) and "headroom" not in checks(safe)
        larger = with_chunk(settings, chunk + 256)
        assert (
            chunk == 16384
            or "chunk-times-context" in checks(larger)
            or "headroom" in checks(larger, "warn") + checks(larger)
        )


@pytest.mark.parametrize(("fraction", "found"), [(0.93, ["mem-fraction"]), (0.944, []), (0.95, [])])
def test_fraction_that_the_weights_need(fraction: float, found: list[str]) -> None:
    settings = server(tp=3, heads=96, draft_experts=129, chunk=512, mem_fraction=fraction)
    assert checks(settings) == found
    assert min_mem_fraction(SHAPE, settings) == pytest.approx(0.944, abs=0.001)


def test_draft_counts_for_the_fraction_only_when_it_runs() -> None:
    with_draft, without = server(tp=4, ep=2), server(tp=4, ep=2, verify=0)
    assert min_mem_fraction(SHAPE, without) < min_mem_fraction(SHAPE, with_draft)
    assert bytes_per_token(CONFIG, has_draft=False) < bytes_per_token(CONFIG, has_draft=True)
    assert bytes_per_token(CONFIG, has_draft=False, kv_layout="v41") == 890.0
    assert swa_tokens(CONFIG, without.pool) < swa_tokens(CONFIG, with_draft.pool)
    names = {item.name for item in budget_rank(SHAPE, without, 0).items}
    assert not any(name.startswith("draft") for name in names)


def test_two_sparks_are_refused_with_the_arithmetic() -> None:
    (problem,) = budget_problems(SHAPE, server(tp=2))
    assert problem.check == "weights"
    assert "must fit 121.7 GiB, got 144.9 GiB at tp 2" in problem.message
    assert "286.4 GiB stored without Engram rows" in problem.message


def test_resident_engram_rows_are_refused() -> None:
    settings = dataclasses.replace(server(tp=4, ep=2), engram_resident=True)
    assert checks(settings) == ["engram-rows"]
    assert engram_rank_bytes(SHAPE, settings.split) == pytest.approx(47.21 * GIB, rel=0.001)


def test_a_pin_is_clamped_and_none_is_sized_by_the_fraction() -> None:
    clamped = server(tp=4, ep=2, tokens=20_000_000, mem_fraction=0.8)
    computed = engine_pool_tokens(SHAPE, clamped)
    assert computed is not None and computed % 256 == 0
    assert served_tokens(SHAPE, clamped) == computed
    assert "pool-clamped" in checks(clamped, "warn")
    assert served_tokens(SHAPE, dataclasses.replace(clamped, pinned_tokens=None)) == computed
    unsized = server(tp=4, ep=2, tokens=None, mem_fraction=None)
    assert served_tokens(SHAPE, unsized) == 262144
    assert "pool-not-pinned" in checks(unsized, "warn")


def test_three_sparks_keep_the_floor_while_idle() -> None:
    """The transient of a short prompt is nothing; the pool alone leaves too little."""
    settings = server(tp=3, chunk=256, context=8192, tokens=3_500_000)
    head = budget_rank(SHAPE, settings, 0)
    assert 0 < head.left_bytes < head.idle_bytes < 2 * GB
    assert checks(settings) == ["headroom"]


def test_row_cache_is_taken_from_the_pool_and_raises_the_fraction() -> None:
    plain = server(tp=4, ep=2, tokens=None, mem_fraction=0.8)
    cached = server(tp=4, ep=2, tokens=None, mem_fraction=0.8, cache_gib=4)
    fewer = served_tokens(SHAPE, plain) - served_tokens(SHAPE, cached)
    assert fewer * bytes_per_token(CONFIG, has_draft=True) == pytest.approx(4 * GIB, rel=0.001)
    assert min_mem_fraction(SHAPE, cached) - min_mem_fraction(SHAPE, plain) == pytest.approx(4 / 104.25)


def test_context_above_the_models_own() -> None:
    assert "context" in checks(server(tp=4, ep=2, context=(1 << 20) + 1, tokens=2_000_000))
    assert "context" not in checks(server(tp=4, ep=2, context=1 << 20, tokens=2_000_000))


def test_pool_below_one_request() -> None:
    assert "pool-below-context" in checks(server(tp=3, chunk=512, tokens=4096), "warn")


def test_nccl_sizes_are_warned_about_and_counted() -> None:
    plain = server(tp=4, ep=2, nccl_buffers_small=False)
    assert "nccl-buffers" in checks(plain, "warn")
    small, large = (budget_rank(SHAPE, item, 1).start_bytes for item in (server(tp=4, ep=2), plain))
    assert large - small == pytest.approx(4.86e9)


def shipped(name: str) -> Recipe:
    return load_recipe(name)[0]


def test_shipped_recipes_on_their_own_size() -> None:
    found = {
        name: [problem.check for problem in fit_recipe(recipe, SHAPE).refusals]
        for name in shipped_recipes()
        if can_fit(recipe := shipped(name))
    }
    assert found == {
        "v41-flash-3x": [],
        "v41-flash-4x": [],
        "v41-flash-4x-sp": [],
        "v41-flash-8x": [],
    }


def test_what_the_recipe_says_is_what_is_counted() -> None:
    recipe = shipped("v41-flash-4x")
    fit = fit_recipe(recipe, SHAPE)
    assert fit.settings.nccl_buffers_small and not fit.settings.engram_resident
    assert fit.settings.engram_cache_bytes == 3.5 * GIB
    assert fit.settings.engram_lookahead_bytes == 0.5 * GIB
    assert fit.settings.pool.verify_tokens == 6
    assert (fit.kv_tokens, fit.settings.split.ep) == (4_000_000, 2)
    moved = fit_recipe(recipe, SHAPE, WhatIf(nodes=3))
    assert moved.settings.split.ep == 1  # ep 2 does not divide 3 ranks
    assert len(moved.budgets) == 3


def test_a_layout_that_boot_decides_is_counted_as_the_larger_one() -> None:
    counted = {}
    for layout in ("v4", "v41", "auto"):
        recipe = shipped("v41-flash-4x")
        extensions = recipe.extensions.model_copy(update={"kv_layout": layout})
        counted[layout] = fit_recipe(
            recipe.model_copy(update={"extensions": extensions}), SHAPE
        ).bytes_per_token
    assert counted["auto"] == counted["v4"] > counted["v41"]


@pytest.mark.parametrize("name", ["NCCL_BUFFSIZE", "NCCL_LL128_BUFFSIZE", "NCCL_PROTO", "NCCL_MAX_NCHANNELS"])
def test_all_four_nccl_values_are_needed(name: str) -> None:
    recipe = shipped("v41-flash-3x")
    environment = {key: value for key, value in recipe.environment.items() if key != name}
    assert not fit_recipe(
        recipe.model_copy(update={"environment": environment}), SHAPE
    ).settings.nccl_buffers_small


def test_values_that_are_left_out_are_said() -> None:
    recipe = shipped("v41-flash-4x")
    bare = recipe.server.model_copy(update={"chunked_prefill_size": None, "max_running_requests": None})
    fit = fit_recipe(recipe.model_copy(update={"server": bare}), SHAPE)
    assert [problem.check for problem in fit.problems].count("assumed") == 2
    no_chunks = recipe.server.model_copy(update={"chunked_prefill_size": -1})
    whole = fit_recipe(recipe.model_copy(update={"server": no_chunks}), SHAPE)
    assert whole.settings.pool.chunk_tokens == 1048576
    assert not whole.fits


def test_cpu_recipes_are_refused() -> None:
    with pytest.raises(UsageError, match="got local, which runs the CPU engine"):
        fit_recipe(shipped("local"), SHAPE)
