"""Public numbers of DeepSeek-V4.1-Flash servers, and what `fit` computes for each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from launcher.fit.constants import GB, GIB, constants
from launcher.fit.fit_rules import min_mem_fraction
from launcher.fit.kv_pool import (
    PoolSettings,
    bytes_per_token,
    compact_bytes_per_token,
    page_down,
    pool_tokens,
    swa_bytes,
    swa_tokens,
)
from launcher.fit.memory_budget import MemorySettings, budget_rank, gib, weight_bytes
from launcher.fit.rank_weights import rank_part_bytes
from launcher.fit.weight_classes import Part
from tests.launcher.fit_settings import LOG_TP3, LOG_TP4, SHAPE, server

LOG3 = "three-Spark boot log of 2026-09-11 (index text 69412325477 of a public code index)"
LOG4 = "0xSero/local-ai-registry: boot-lines.txt of 2026-09-19, four Sparks tuned"
MIAAI = "MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks"
FILES = "file list and index of deepseek-ai/DeepSeek-V4.1-Flash"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number. `basis` names what went into it: nothing but shapes, or constants of other log lines."""

    what: str
    published: float
    unit: str
    source: str
    predicted: float
    basis: str

    @property
    def deviation(self) -> float:
        return self.predicted / self.published - 1


def figures() -> Iterator[Figure]:
    yield from _stored()
    yield from _weights()
    yield from _pools()
    yield from _totals()


def _stored() -> Iterator[Figure]:
    shape = "config values"
    parts = SHAPE.part_bytes
    without_rows = SHAPE.stored_bytes - parts[Part.ENGRAM_ROWS]
    draft = sum(size for part, size in parts.items() if part.is_draft)
    routed = (parts[Part.ROUTED] + parts[Part.DRAFT_ROUTED]) / SHAPE.stored_bytes * 100
    yield Figure(
        what="tensor bytes of the checkpoint",
        published=510_286_023_000,
        unit="B",
        source=FILES,
        predicted=SHAPE.stored_bytes,
        basis=f"{shape}; vision 0.97 GB as published",
    )
    yield Figure(
        what="the same without Engram rows",
        published=307_527_990_600,
        unit="B",
        source=FILES,
        predicted=without_rows,
        basis=f"{shape}; vision 0.97 GB as published",
    )
    yield Figure(
        what="draft tensors", published=7.9, unit="GB", source=FILES, predicted=draft / GB, basis=shape
    )
    yield Figure(
        what="share of routed experts", published=58.0, unit="%", source=FILES, predicted=routed, basis=shape
    )


def _weights() -> Iterator[Figure]:
    shape = "shapes and split"
    two = server(tp=2).split
    three = server(tp=3, heads=96, draft_experts=129).split
    four = server(tp=4, ep=2).split

    def rank_gib(settings: MemorySettings, draft: bool | None = None) -> float:
        return weight_bytes(SHAPE, settings.split, draft=draft) / GIB

    yield Figure(
        what="weights per rank, two Sparks",
        published=145,
        unit="GiB",
        source=f"{MIAAI}: doctor",
        predicted=weight_bytes(SHAPE, two) / GIB,
        basis=shape,
    )
    yield Figure(
        what="weights per rank, three Sparks (96 heads)",
        published=101,
        unit="GiB",
        source=f"{MIAAI}: README",
        predicted=weight_bytes(SHAPE, three) / GIB,
        basis=shape,
    )
    for what, published, draft in (
        ("target weights, three Sparks, workers", 95.31, False),
        ("target weights, three Sparks, head", 94.00, False),
        ("draft weights, three Sparks", 2.80, True),
    ):
        yield Figure(
            what=what,
            published=published,
            unit="GiB",
            source=LOG3,
            predicted=rank_gib(LOG_TP3, draft),
            basis=shape,
        )
    yield Figure(
        what="target weights, four Sparks",
        published=70.87,
        unit="GiB",
        source=LOG4,
        predicted=rank_gib(LOG_TP4, False),
        basis=shape,
    )
    yield Figure(
        what="weights per rank, four Sparks, another log",
        published=72.14,
        unit="GiB",
        source=MIAAI,
        predicted=weight_bytes(SHAPE, four) / GIB,
        basis=shape,
    )
    parts = rank_part_bytes(SHAPE, four)
    yield Figure(
        what="BF16 copy of wo_a, four Sparks",
        published=722,
        unit="MB",
        source=f"{MIAAI}: wo_a FP8 twin",
        predicted=(parts[Part.WO_A] + parts[Part.DRAFT_WO_A]) / 1e6,
        basis=shape,
    )


def _pools() -> Iterator[Figure]:
    config = SHAPE.config
    formula = "SGLang 0.5.23's formula"
    yield Figure(
        what="KV bytes per token without a draft",
        published=1630.0,
        unit="B",
        source="SGLang's layout before pages were padded",
        predicted=bytes_per_token(config, has_draft=False),
        basis=f"{formula}, pages padded to 576 B",
    )
    yield Figure(
        what="KV bytes per token with a draft",
        published=1670.75,
        unit="B",
        source=LOG3,
        predicted=bytes_per_token(config, has_draft=True),
        basis=f"{formula}, pages padded to 576 B",
    )
    yield Figure(
        what="KV bytes per token, publisher's FP4 layout",
        published=890,
        unit="B",
        source="deepseek-ai/DeepSeek-V4.1-Flash model card",
        predicted=compact_bytes_per_token(config),
        basis="shapes",
    )
    yield Figure(
        what="pool from 8.84 GiB (logged as GB)",
        published=5_491_200,
        unit="tokens",
        source=LOG3,
        predicted=pool_tokens(config, LOG_TP3.pool, 8.84 * GIB),
        basis=f"{formula} and the log's available_bytes",
    )
    for asked, published, source in (
        (750_000, 749_824, f"{MIAAI}: server read back"),
        (3_000_000, 2_999_808, LOG3),
        (6_000_000, 5_999_872, LOG4),
    ):
        yield Figure(
            what=f"pool for max-total-tokens {asked}",
            published=published,
            unit="tokens",
            source=source,
            predicted=page_down(asked),
            basis="pages of 256",
        )
    yield from _sliding_window()


def _sliding_window() -> Iterator[Figure]:
    config = SHAPE.config
    yield Figure(
        what="sliding-window pool, three Sparks",
        published=13_312,
        unit="tokens",
        source=LOG3,
        predicted=swa_tokens(config, LOG_TP3.pool),
        basis="SGLang 0.5.23's formula: 4 requests, chunk 1024, block 5",
    )
    for published, requests, chunk, block, source in (
        (0.30, 4, 1024, 5, LOG3),
        (0.34, 4, 2048, 5, MIAAI),
        (0.49, 8, 1024, 3, MIAAI),
        (0.67, 8, 4096, 5, MIAAI),
    ):
        pool = PoolSettings(max_running_requests=requests, chunk_tokens=chunk, verify_tokens=block + 1)
        yield Figure(
            what=f"sliding-window pool, {requests} requests, chunk {chunk}, block {block}",
            published=published,
            unit="GiB",
            source=source,
            predicted=swa_bytes(config, pool) / GIB,
            basis="SGLang 0.5.23's formula"
            + ("" if source == LOG3 else "; settings of the launch table, the log does not repeat them"),
        )


def _totals() -> Iterator[Figure]:
    usable = gib(constants().usable_gib)
    head, worker = budget_rank(SHAPE, LOG_TP3, 0), budget_rank(SHAPE, LOG_TP3, 1)
    four = budget_rank(SHAPE, LOG_TP4, 0)
    yield Figure(
        what="held when ready, three Sparks, head",
        published=(usable - 7.68 * GIB) / GIB,
        unit="GiB",
        source=f"{LOG3}: available_gpu_mem=7.68",
        predicted=head.start_bytes / GIB,
        basis="formulas; workspaces, graphs and start memory of the same log",
    )
    yield Figure(
        what="held while serving, three Sparks, worker",
        published=(usable - 4617684 * 1024) / GIB,
        unit="GiB",
        source=f"{LOG3}: MemAvailable 4617684 kB",
        predicted=(worker.start_bytes + worker.serving_growth.num_bytes) / GIB,
        basis="formulas; growth is the head's",
    )
    yield Figure(
        what="held when ready, four Sparks",
        published=(usable - 15.29 * GIB) / GIB,
        unit="GiB",
        source=f"{LOG4}: available_gpu_mem 15.29",
        predicted=four.start_bytes / GIB,
        basis="formulas; constants of the three-Spark log, workspaces scaled with the chunk",
    )


def taken_over() -> Iterator[Figure]:
    """Constants that are used as published: no prediction."""
    least = min_mem_fraction(SHAPE, server(tp=3, heads=96, draft_experts=129))
    yield Figure(
        what="least mem-fraction-static, three Sparks",
        published=0.944,
        unit="",
        source=MIAAI,
        predicted=least,
        basis="calibrated on this figure",
    )
    for what, published, constant in (
        ("NCCL buffers, its own sizes (4.7 to 5.0)", 5.0, constants().nccl_default_gb),
        ("NCCL buffers, four small values", 0.14, constants().nccl_small_gb),
    ):
        yield Figure(
            what=what,
            published=published,
            unit="GB",
            source=MIAAI,
            predicted=constant.value,
            basis="taken over",
        )
