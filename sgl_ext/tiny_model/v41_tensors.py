"""Every tensor of a V4.1-shaped checkpoint: official name, stored type, shape, and how its values are drawn.

No name carries a "model." prefix. Dense weights are FP8 with one power-of-two scale per 32 x 32 block, routed
experts are packed FP4 pairs (I8) with one scale per 32 along K, Engram rows are FP8 with one scale per 32.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from sgl_ext.tiny_model.v41_sizes import V41Size, VisionSize

BLOCK = 32


class Fill(enum.StrEnum):
    """How a tensor's bytes are drawn from its random stream."""

    NORMAL = "normal"  # mean + std * normal, in the stored type
    FP8_CODES = "fp8_codes"  # e4m3 codes of a normal with std FP8_CODE_STD
    FP4_PAIRS = "fp4_pairs"  # two uniform e2m1 codes a byte
    SCALES = "scales"  # e8m0: 2^e or 2^(e-1), evenly


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    name: str
    dtype: str  # as safetensors spells it
    shape: tuple[int, ...]
    fill: Fill = Fill.NORMAL
    mean: float = 0.0
    std: float = 1.0  # NORMAL: of the values; SCALES: of the values that the scaled codes stand for


def list_tensors(size: V41Size) -> Iterator[TensorSpec]:
    """All tensors but the Engram tables, in checkpoint order."""
    hidden, vocab = size.hidden_size, size.vocab_size
    yield _bf16("embed.weight", vocab, hidden, std=1.0)
    # Logits with a spread of 4: greedy choices stay clear of bf16 noise.
    yield _bf16("head.weight", vocab, hidden, std=4.0 * hidden**-0.5)
    yield _norm("norm.weight", hidden)
    for layer in range(size.num_layers):
        prefix = f"layers.{layer}."
        yield from _block(prefix, size, size.n_routed_experts)
        yield from _sparse_attention(prefix + "attn.", size, layer)
        if layer in size.engram_layer_ids:
            yield from _engram(prefix + "engram.", size)
    for stage in range(size.num_stages):
        yield from _block(f"mtp.{stage}.", size, size.dspark_n_routed_experts)
    yield from _draft_ends(size)
    if size.vision is not None:
        yield from _vision(size.vision, hidden)


def list_engram_tables(layer: int, num_rows: int, size: V41Size) -> Iterator[TensorSpec]:
    """One Engram layer's table, the two tensors of its own shard file."""
    name = f"layers.{layer}.engram.embed."
    dim = size.engram_head_dim
    yield TensorSpec(name=name + "weight", dtype="F8_E4M3", shape=(num_rows, dim), fill=Fill.FP8_CODES)
    yield TensorSpec(name=name + "scale", dtype="F8_E8M0", shape=(num_rows, dim // BLOCK), fill=Fill.SCALES)


def _block(prefix: str, size: V41Size, num_experts: int) -> Iterator[TensorSpec]:
    hidden, inter = size.hidden_size, size.moe_intermediate_size
    yield _norm(prefix + "attn_norm.weight", hidden)
    yield _norm(prefix + "ffn_norm.weight", hidden)
    yield from _dense_attention(prefix + "attn.", size)
    yield _bf16(prefix + "ffn.gate.weight", num_experts, hidden)
    yield _f32(prefix + "ffn.gate.bias", num_experts, std=0.05)
    yield _f32(prefix + "ffn.gate.bias_vl", num_experts, std=0.05)
    for expert in range(num_experts):
        name = f"{prefix}ffn.experts.{expert}."
        yield from _fp4(name + "w1", inter, hidden)
        yield from _fp4(name + "w2", hidden, inter)
        yield from _fp4(name + "w3", inter, hidden)
    yield from _fp8(prefix + "ffn.shared_experts.w1", inter, hidden)
    yield from _fp8(prefix + "ffn.shared_experts.w2", hidden, inter)
    yield from _fp8(prefix + "ffn.shared_experts.w3", inter, hidden)
    num_mixes = (2 + size.hc_mult) * size.hc_mult
    for part in ("attn", "ffn"):
        yield _f32(f"{prefix}hc_{part}_fn", num_mixes, size.hc_mult * hidden)
        yield _f32(f"{prefix}hc_{part}_base", num_mixes, std=0.5)
        yield _f32(f"{prefix}hc_{part}_scale", 3, mean=0.5, std=0.1)


def _dense_attention(prefix: str, size: V41Size) -> Iterator[TensorSpec]:
    heads, width = size.num_attention_heads, size.head_dim
    yield from _fp8(prefix + "wq_a", size.q_lora_rank, size.hidden_size)
    yield _norm(prefix + "q_norm.weight", size.q_lora_rank)
    yield from _fp8(prefix + "wq_b", heads * width, size.q_lora_rank)
    yield from _fp8(prefix + "wkv", width, size.hidden_size)
    yield _norm(prefix + "kv_norm.weight", width)
    yield from _fp8(prefix + "wo_a", size.o_groups * size.o_lora_rank, heads * width // size.o_groups)
    yield from _fp8(prefix + "wo_b", size.hidden_size, size.o_groups * size.o_lora_rank)
    yield _f32(prefix + "attn_sink", heads, std=1.0)


def _sparse_attention(prefix: str, size: V41Size, layer: int) -> Iterator[TensorSpec]:
    width, index_width = size.head_dim, size.index_head_dim
    is_kv_source = layer in size.kv_source_layer_ids
    if is_kv_source:
        yield _norm(prefix + "compressor.norm.weight", width)
        yield _bf16(prefix + "compressor.wkv.weight", width, size.hidden_size)
        if size.compress_ratios[layer] > 1:
            yield _bf16(prefix + "compressor.wgate.weight", width, size.hidden_size)
    if layer in size.index_source_layer_ids:
        yield from _fp8(prefix + "indexer.wq_b", size.index_n_heads * index_width, size.q_lora_rank)
        yield _bf16(prefix + "indexer.weights_proj.weight", size.index_n_heads, size.hidden_size)
        if is_kv_source:
            yield _bf16(prefix + "indexer.wk.weight", index_width, width)
            yield _norm(prefix + "indexer.k_norm.weight", index_width)


def _engram(prefix: str, size: V41Size) -> Iterator[TensorSpec]:
    yield from _fp8(
        prefix + "wkv", size.hidden_size * (size.hc_mult + 1), size.engram_columns * size.engram_head_dim
    )
    for name in ("q_weight", "k_weight"):
        yield _bf16(prefix + name, size.hc_mult, size.hidden_size, mean=1.0, std=0.1)


def _draft_ends(size: V41Size) -> Iterator[TensorSpec]:
    hidden, last = size.hidden_size, size.num_stages - 1
    yield from _fp8("mtp.0.main_proj", hidden, hidden * size.num_stages)
    yield _norm("mtp.0.main_norm.weight", hidden)
    yield _norm(f"mtp.{last}.norm.weight", hidden)
    rank = size.dspark_markov_rank
    yield _bf16(f"mtp.{last}.markov_head.embed.weight", size.vocab_size, rank, std=1.0)
    yield _bf16(f"mtp.{last}.markov_head.head.weight", size.vocab_size, rank)
    yield _bf16(f"mtp.{last}.confidence_head.proj.weight", 1, hidden + rank)


def _vision(size: VisionSize, text_width: int) -> Iterator[TensorSpec]:
    """The tower, the aligner that joins patches to tokens, and the tokens around an image."""
    width, inter = size.hidden_size, size.intermediate_size
    yield from _biased("vision.patch_embed.proj", width, 3 * size.patch_size**2)
    for layer in range(size.num_hidden_layers):
        prefix = f"vision.blocks.{layer}."
        yield _norm(prefix + "norm1.weight", width)
        yield from _biased(prefix + "attn.wqkv", 3 * width, width)
        yield from _biased(prefix + "attn.wo", width, width)
        yield _norm(prefix + "norm2.weight", width)
        yield _bf16(prefix + "mlp.w1.weight", 2 * inter, width)
        yield _bf16(prefix + "mlp.w2.weight", width, inter)
    yield _norm("vision.norm.weight", width)
    yield from _biased("aligner.w1", text_width, width * size.downsample_ratio**2)
    yield from _biased("aligner.w2", text_width, text_width)
    for name in ("start", "end", "newline"):
        yield _bf16(f"image_{name}", text_width, std=1.0)


def _biased(name: str, rows: int, columns: int) -> Iterator[TensorSpec]:
    yield _bf16(name + ".weight", rows, columns)
    yield _bf16(name + ".bias", rows, std=0.1)


def _norm(name: str, width: int) -> TensorSpec:
    return TensorSpec(name=name, dtype="BF16", shape=(width,), mean=1.0, std=0.1)


def _bf16(name: str, *shape: int, mean: float = 0.0, std: float | None = None) -> TensorSpec:
    return TensorSpec(name=name, dtype="BF16", shape=shape, mean=mean, std=_keep_norm(shape, std))


def _f32(name: str, *shape: int, mean: float = 0.0, std: float | None = None) -> TensorSpec:
    return TensorSpec(name=name, dtype="F32", shape=shape, mean=mean, std=_keep_norm(shape, std))


def _fp8(name: str, rows: int, columns: int) -> Iterator[TensorSpec]:
    yield TensorSpec(name=name + ".weight", dtype="F8_E4M3", shape=(rows, columns), fill=Fill.FP8_CODES)
    shape = (_blocks(rows, name), _blocks(columns, name))
    yield TensorSpec(name=name + ".scale", dtype="F8_E8M0", shape=shape, fill=Fill.SCALES, std=columns**-0.5)


def _fp4(name: str, rows: int, columns: int) -> Iterator[TensorSpec]:
    yield TensorSpec(name=name + ".weight", dtype="I8", shape=(rows, columns // 2), fill=Fill.FP4_PAIRS)
    shape = (rows, _blocks(columns, name))
    yield TensorSpec(name=name + ".scale", dtype="F8_E8M0", shape=shape, fill=Fill.SCALES, std=columns**-0.5)


def _blocks(length: int, name: str) -> int:
    if length % BLOCK:
        raise ValueError(f"Sizes of {name} must be multiples of {BLOCK}, got {length}.")
    return length // BLOCK


def _keep_norm(shape: tuple[int, ...], std: float | None) -> float:
    """Where not given: the std that keeps an input's size through a weight of this shape."""
    return float(shape[-1]) ** -0.5 if std is None else std
