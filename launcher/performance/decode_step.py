"""Time of one decode step: draft, verify and everything between, item by item."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from launcher.fit.kv_pool import slot_bytes, window_slot_bytes
from launcher.fit.model_shape import BLOCK, ModelShape
from launcher.performance.collectives import interpolate, small_allreduce_s, table
from launcher.performance.constants import Fitted, constant
from launcher.performance.experts import distinct_experts, group_imbalance
from launcher.performance.rank_work import (
    RankWork,
    dense_s,
    experts_s,
    head_s,
    index_layers,
    rank_work,
    read_bytes_per_s,
    touched_experts,
)
from launcher.performance.stack import Stack

_ACTIVATION_BYTES = 2
# An int64 slot and a float32 score, written and read (SGLang 0.5.23, v41_indexer/scoring.py, dense branch).
_SLOT_AND_SCORE_BYTES = 2 * 12


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Milliseconds of each item; they follow one another."""

    experts_ms: float
    expert_wait_ms: float
    dense_ms: float
    draft_ms: float
    collectives_ms: float
    engram_ms: float
    index_ms: float
    kv_ms: float

    @property
    def total_ms(self) -> float:
        return sum(self.items().values())

    def items(self) -> Mapping[str, float]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def verify_rows(
    stack: Stack, tokens_per_step: float, known: Fitted, planned_rows: float | None
) -> tuple[float, float]:
    """Rows of a request's block that pass through every kernel, and those that draw experts of their own."""
    block = stack.block + 1.0
    if stack.verify == "planner":
        assert planned_rows is not None
        return planned_rows, planned_rows
    if stack.verify == "cap":
        return block, tokens_per_step + known.live_rejected_share * (block - tokens_per_step)
    return block, block


def decode_step(
    shape: ModelShape,
    stack: Stack,
    known: Fitted,
    *,
    streams: int,
    tokens_per_step: float,
    planned_rows: float | None = None,
) -> StepTime:
    """`tokens_per_step`: accepted tokens and the bonus token, of one request."""
    config, work = shape.config, rank_work(shape, stack)
    block_rows, live_rows = verify_rows(stack, tokens_per_step, known, planned_rows)
    rows = streams * block_rows
    one_text = stack.texts != "different" or streams == 1
    drawing = live_rows if stack.texts == "alike" else streams * live_rows
    touched = touched_experts(shape, drawing, known, one_text=one_text)
    slow = known.stock_dense_slowdown if stack.dense == "stock" else 1.0
    experts = experts_s(work, config.num_hidden_layers, touched, rows, constant("experts_per_token"), known)
    return StepTime(
        experts_ms=1e3 * experts,
        expert_wait_ms=1e3 * experts * (group_imbalance(touched, stack.ep, config.n_routed_experts) - 1),
        dense_ms=1e3
        * (slow * dense_s(work.dense_read, work.dense_weights, rows, known) + head_s(work, rows, known)),
        draft_ms=1e3 * _draft_s(shape, stack, work, streams, slow, known),
        collectives_ms=1e3 * _collectives_s(shape, stack, rows),
        engram_ms=_engram_ms(shape, stack, rows),
        index_ms=1e3 * _index_s(shape, stack, rows, known),
        kv_ms=1e3 * rows * _kv_row_bytes(shape, stack) / read_bytes_per_s(),
    )


def _collectives_s(shape: ModelShape, stack: Stack, rows: float) -> float:
    """The published number of all-reduces of the residual's width. An all-gather of FP8 Engram rows takes the
    place of one of BF16 rows in each Engram layer; its latency is taken as that of an all-reduce of its
    bytes."""
    config = shape.config
    if stack.tp == 1:
        return 0.0
    number = constant("collectives_per_step_tp4" if stack.tp >= 4 else "collectives_per_step_tp3")
    total = number * small_allreduce_s(stack.collective, rows * config.hidden_size * _ACTIVATION_BYTES)
    if stack.engram_fp8_gather:
        values = (config.engram_max_ngram_size - 1) * config.engram_n_heads * config.engram_head_dim
        bf16 = small_allreduce_s(stack.collective, rows * values * _ACTIVATION_BYTES)
        fp8 = small_allreduce_s(stack.collective, rows * values * (1 + 1 / BLOCK) / 2)
        total -= len(config.engram_layer_ids) * (bf16 - fp8)
    return total


def _engram_ms(shape: ModelShape, stack: Stack, rows: float) -> float:
    """Published gaps of a step that waits for its rows from NVMe."""
    if stack.engram_hidden or not shape.config.engram_layer_ids:
        return 0.0
    return interpolate(table("engram_gap"), rows)


def _index_s(shape: ModelShape, stack: Stack, rows: float, known: Fitted) -> float:
    """Live positions are scored at the speed that prompts show; a capacity costs slots and scores that are
    written and read, of every row and index layer."""
    encoder = index_layers(shape, below=constant("encoder_layers"))
    if not encoder:
        return 0.0
    layers = index_layers(shape)
    scored = rows * stack.live_tokens * layers * 1e-9 * known.index_pair_ns / encoder
    return scored + rows * stack.index_capacity_tokens * layers * _SLOT_AND_SCORE_BYTES / read_bytes_per_s()


def _kv_row_bytes(shape: ModelShape, stack: Stack) -> float:
    """Slots that one row reads: the window in every layer, the selected ones in layers with compressed KV."""
    config = shape.config
    window = config.num_hidden_layers * config.sliding_window * window_slot_bytes(config, stack.kv_layout)
    if not config.kv_source_layer_ids:
        return window
    layers = sum(ratio > 0 for ratio in config.compress_ratios[: config.num_hidden_layers])
    return window + layers * constant("index_topk") * slot_bytes(config, kv_layout=stack.kv_layout)


def _draft_s(
    shape: ModelShape, stack: Stack, work: RankWork, streams: int, slow: float, known: Fitted
) -> float:
    """Dense weights and experts of the stages, and the output head once more."""
    config = shape.config
    stages = config.num_nextn_predict_layers
    if not stages or not stack.block:
        return 0.0
    rows, per_row = streams * (1 + stack.block), constant("draft_experts_per_token")
    touched = distinct_experts(config.dspark_n_routed_experts, per_row, rows, skew=known.expert_skew)
    return (
        slow * dense_s(work.draft_read, work.draft_weights, rows, known)
        + head_s(work, rows, known, fp8=stack.fp8_draft_head)
        + experts_s(work, stages, touched, rows, per_row, known)
    )
