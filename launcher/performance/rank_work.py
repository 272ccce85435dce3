"""What one rank reads and computes: bytes of weights, operations of a row, and the longer of the two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launcher.fit.model_shape import ModelShape, expert_bytes
from launcher.fit.rank_weights import plan_split, rank_part_bytes
from launcher.fit.weight_classes import Part
from launcher.performance.constants import Fitted, constant
from launcher.performance.experts import distinct_experts
from launcher.performance.stack import MXFP4_BITS, Stack

_OPERATIONS_PER_WEIGHT = 2
_BF16 = 2
_SHARDED = (Part.ATTENTION, Part.SHARED)
_DRAFT_SHARDED = (Part.DRAFT_ATTENTION, Part.DRAFT_SHARED)


def read_bytes_per_s() -> float:
    return constant("memory_read_gb_s") * 1e9


def busy_s(num_bytes: float, operations: float, tflops: float) -> float:
    """A kernel reads while it computes: the longer of the two."""
    return max(num_bytes / read_bytes_per_s(), operations / (tflops * 1e12))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWork:
    """Bytes on one rank. `*_read` is what a pass over the weights reads (wo_a may be BF16); `*_weights`
    counts FP8 weights, one byte each, and gives the operations of a row. `head` is BF16."""

    sharded_read: float
    sharded_weights: float
    replicated: float
    draft_read: float
    draft_weights: float
    head: float
    expert: float
    expert_weights: float

    @property
    def dense_read(self) -> float:
        return self.sharded_read + self.replicated

    @property
    def dense_weights(self) -> float:
        return self.sharded_weights + self.replicated


def rank_work(shape: ModelShape, stack: Stack) -> RankWork:
    config = shape.config
    split = plan_split(config, tp=stack.tp, ep=stack.ep, heads=stack.heads, expert_width=stack.expert_width)
    parts = rank_part_bytes(shape, split)
    sharded, draft = _sum(parts, _SHARDED), _sum(parts, _DRAFT_SHARDED)
    # One of the two Markov tables is looked up by row, not read.
    draft += parts[Part.DRAFT_REPLICATED] - config.vocab_size * config.dspark_markov_rank * _BF16
    has_draft = config.num_nextn_predict_layers > 0 and stack.block > 0
    # rank_part_bytes counts wo_a as BF16, as stock SGLang holds it.
    wo_a, draft_wo_a = parts[Part.WO_A] / 2, parts[Part.DRAFT_WO_A] / 2
    copies = 2 if stack.wo_a_bf16 else 1
    return RankWork(
        sharded_read=sharded + copies * wo_a,
        sharded_weights=sharded + wo_a,
        replicated=parts[Part.REPLICATED],
        draft_read=draft + copies * draft_wo_a if has_draft else 0.0,
        draft_weights=draft + draft_wo_a if has_draft else 0.0,
        head=parts[Part.VOCABULARY] / 2,
        expert=expert_bytes(config, split.expert_width) / stack.ep * stack.expert_bits / MXFP4_BITS,
        expert_weights=3 * split.expert_width * config.hidden_size / stack.ep,
    )


def touched_experts(shape: ModelShape, rows: float, known: Fitted, *, one_text: bool = False) -> float:
    """Different experts of one layer, of all ranks. `one_text`: rows of one stream, or of streams with one
    prompt, draw from the experts that such a text plays on."""
    return distinct_experts(
        shape.config.n_routed_experts,
        constant("experts_per_token"),
        rows,
        skew=known.expert_skew,
        pool=known.experts_of_one_prompt if one_text else None,
    )


def experts_s(
    work: RankWork, layers: float, touched: float, rows: float, per_row: float, known: Fitted
) -> float:
    """`layers` layers: touched experts are read, each row goes through `per_row` of them."""
    operations = layers * rows * per_row * _OPERATIONS_PER_WEIGHT * work.expert_weights
    return busy_s(layers * touched * work.expert, operations, known.kernel_tflops)


def dense_s(num_bytes: float, weights: float, rows: float, known: Fitted) -> float:
    return busy_s(num_bytes, rows * _OPERATIONS_PER_WEIGHT * weights, known.kernel_tflops)


def head_s(work: RankWork, rows: float, known: Fitted, *, fp8: bool = False) -> float:
    return dense_s(work.head * (0.5 if fp8 else 1.0), work.head / _BF16, rows, known)


def index_layers(shape: ModelShape, *, below: float | None = None) -> float:
    """Index layers, each counted by the share of positions that it scores."""
    config = shape.config
    return sum(
        1 / max(1, config.compress_ratios[layer])
        for layer in config.index_source_layer_ids
        if below is None or layer < below
    )


def _sum(parts: Mapping[Part, int], names: tuple[Part, ...]) -> float:
    return float(sum(parts[name] for name in names))
