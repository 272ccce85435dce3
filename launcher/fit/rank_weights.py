"""Pure: how the model is split over ranks, what kernels refuse, and the bytes of each part on one rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from launcher.fit.fit_problem import FitProblem
from launcher.fit.model_config import ModelConfig
from launcher.fit.model_shape import ModelShape, expert_bytes
from launcher.fit.weight_classes import Part

# SGLang pads the vocabulary to 64 rows a rank (layers/vocab_parallel_embedding.py).
_VOCAB_MULTIPLE = 64
# Mxfp4FlashinferCutlassMoEMethod.create_weights refuses other widths.
EXPERT_WIDTH_MULTIPLE = 128
FLASHINFER_BACKENDS = ("auto", "flashinfer_mxfp4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """All after padding: `head_groups` and `draft_experts` are totals, `expert_width` is one rank's."""

    tp: int
    ep: int
    head_groups: int
    expert_width: int
    draft_experts: int


def plan_split(
    config: ModelConfig,
    *,
    tp: int,
    ep: int,
    heads: int | None = None,
    expert_width: int | None = None,
    draft_experts: int | None = None,
) -> Split:
    """Least padding unless told otherwise: groups to the next multiple of tp (TP3: 9 groups, 72 heads)."""
    heads_per_group = config.num_attention_heads // config.o_groups
    return Split(
        tp=tp,
        ep=ep,
        head_groups=_up(config.o_groups, tp) if heads is None else -(-heads // heads_per_group),
        expert_width=_ceil(config.moe_intermediate_size * ep, tp) if expert_width is None else expert_width,
        draft_experts=config.dspark_n_routed_experts if draft_experts is None else draft_experts,
    )


def split_problems(config: ModelConfig, split: Split, *, expert_backend: str) -> Iterator[FitProblem]:
    """Shapes that stop the engine minutes into a start, found by arithmetic."""
    heads_per_group = config.num_attention_heads // config.o_groups
    if split.head_groups < config.o_groups or split.head_groups % split.tp:
        yield FitProblem.refuse(
            "head-split",
            f"{config.o_groups} head groups must be padded to a multiple of tp = {split.tp}, got "
            f"{split.head_groups} "
            f"({split.head_groups * heads_per_group} heads)",
            f"--heads {_up(config.o_groups, split.tp) * heads_per_group}",
        )
    if split.tp % split.ep or config.n_routed_experts % split.ep:
        yield FitProblem.refuse(
            "expert-split",
            f"ep must divide tp = {split.tp} and the {config.n_routed_experts} routed experts, got "
            f"{split.ep}",
            "set parallelism.ep to 1",
        )
    if config.num_nextn_predict_layers and split.draft_experts < config.dspark_n_routed_experts:
        least = config.dspark_n_routed_experts
        yield FitProblem.refuse(
            "draft-experts",
            f"all {least} experts of the draft must be held, got {split.draft_experts}",
            f"--draft-experts {_up(least, split.ep)}",
        )
    elif config.num_nextn_predict_layers and split.draft_experts % split.ep:
        yield FitProblem.refuse(
            "draft-experts",
            f"the draft's {split.draft_experts} experts must divide by ep = {split.ep}: FusedMoE asserts it",
            f"set parallelism.ep to 1, or pad: --draft-experts {_up(split.draft_experts, split.ep)}",
        )
    yield from _width_problems(config, split, expert_backend)


def _width_problems(config: ModelConfig, split: Split, expert_backend: str) -> Iterator[FitProblem]:
    exact = _ceil(config.moe_intermediate_size * split.ep, split.tp)
    padded = _up(exact, EXPERT_WIDTH_MULTIPLE)
    if split.expert_width < exact:
        yield FitProblem.refuse(
            "expert-width",
            f"the expert width per rank must be at least {config.moe_intermediate_size} x {split.ep} / "
            f"{split.tp} = {exact}, got {split.expert_width}",
            f"--expert-width {padded}",
        )
    elif split.expert_width % EXPERT_WIDTH_MULTIPLE and expert_backend in FLASHINFER_BACKENDS:
        yield FitProblem.refuse(
            "expert-width",
            f"the expert width per rank must be a multiple of {EXPERT_WIDTH_MULTIPLE} for "
            "flashinfer_mxfp4, got "
            f"{config.moe_intermediate_size} x {split.ep} / {split.tp} = {split.expert_width} "
            f"({split.expert_width} % {EXPERT_WIDTH_MULTIPLE} = "
            f"{split.expert_width % EXPERT_WIDTH_MULTIPLE})",
            f"set parallelism.ep so that the width divides, or pad it: --expert-width {padded}",
        )


def rank_part_bytes(shape: ModelShape, split: Split) -> dict[Part, int]:
    """Bytes of each part on every rank (padding makes ranks equal), without Engram rows."""
    config, stored = shape.config, shape.part_bytes
    groups = split.head_groups / split.tp / config.o_groups
    width = config.n_shared_experts * config.moe_intermediate_size
    shared = _ceil(width, split.tp) / width if width else 0.0
    vocabulary = _up(config.vocab_size, _VOCAB_MULTIPLE * split.tp) / split.tp / config.vocab_size
    one_expert = expert_bytes(config, split.expert_width) / expert_bytes(config, config.moe_intermediate_size)
    draft_share = _ceil(split.draft_experts, split.ep) / config.dspark_n_routed_experts
    factors = {
        Part.ROUTED: one_expert / split.ep,
        Part.DRAFT_ROUTED: one_expert * draft_share,
        Part.ATTENTION: groups,
        Part.DRAFT_ATTENTION: groups,
        # SGLang turns wo_a with 32 x 32 scales into BF16 at load: two bytes for each stored one.
        Part.WO_A: 2 * groups,
        Part.DRAFT_WO_A: 2 * groups,
        Part.SHARED: shared,
        Part.DRAFT_SHARED: shared,
        Part.VOCABULARY: vocabulary,
        Part.REPLICATED: 1.0,
        Part.DRAFT_REPLICATED: 1.0,
        Part.VISION: 1.0,
    }
    return {part: round(stored[part] * factor) for part, factor in factors.items()}


def engram_rank_bytes(shape: ModelShape, split: Split) -> int:
    """Rows that one rank holds when they are resident: tables are split by columns."""
    return _ceil(shape.part_bytes[Part.ENGRAM_ROWS], split.tp)


def _ceil(value: int, divisor: int) -> int:
    return -(-value // divisor)


def _up(value: int, multiple: int) -> int:
    return _ceil(value, multiple) * multiple
