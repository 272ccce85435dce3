"""Sizes of small DeepSeek-V4.1-shaped models. Structure is the real model's; widths and depth are not.

Kernels and pools fix some widths: head_dim 512 with 64 rotated, index_head_dim 128, sliding window 128.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSize:
    """Field names are those of config.json's vision_config."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    max_image_tokens: int
    min_pixels: int
    patch_size: int = 14
    downsample_ratio: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class V41Size:
    """Field names are those of config.json's text_config, where it has them."""

    vocab_size: int
    hidden_size: int
    moe_intermediate_size: int
    num_attention_heads: int
    o_groups: int
    q_lora_rank: int
    o_lora_rank: int
    rms_norm_eps: float
    n_routed_experts: int
    num_experts_per_tok: int
    compress_ratios: tuple[int, ...]  # one per layer, then one 0 per draft stage
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    candidate_source_layer_id: int
    candidate_topk_blocks: int
    index_n_heads: int
    index_topk: int
    engram_layer_ids: tuple[int, ...]
    engram_vocab_size: int
    engram_head_dim: int
    dspark_block_size: int
    dspark_target_layer_ids: tuple[int, ...]
    dspark_markov_rank: int
    dspark_n_routed_experts: int
    dspark_num_experts_per_tok: int
    head_dim: int = 512
    qk_rope_head_dim: int = 64
    index_head_dim: int = 128
    hc_mult: int = 4
    candidate_block_size: int = 8
    engram_max_ngram_size: int = 4
    engram_n_heads: int = 8
    original_positions: int = 4096
    rope_factor: int = 16
    vision: VisionSize | None = None  # the tower that turns an image into tokens

    @property
    def num_stages(self) -> int:
        return len(self.dspark_target_layer_ids)

    @property
    def num_layers(self) -> int:
        return len(self.compress_ratios) - self.num_stages

    @property
    def engram_columns(self) -> int:
        return (self.engram_max_ngram_size - 1) * self.engram_n_heads


# Served by the CPU engine. 384 = 3 x 128 = 4 x 96, so experts divide by 1, 2, 3 and 4 ranks; heads and groups
# do not divide by 3, as in the real model. SGLang takes index_topk 512 or 1024 only, so selection leaves
# positions out from 512 compressed positions on; 96 candidate blocks hold 768.
CPU = V41Size(
    vocab_size=1024,
    hidden_size=256,
    moe_intermediate_size=384,
    num_attention_heads=16,
    o_groups=8,
    q_lora_rank=128,
    o_lora_rank=64,
    rms_norm_eps=1e-20,
    n_routed_experts=12,
    num_experts_per_tok=2,
    compress_ratios=(0, 0, 2, 2, 1, 1, 0, 0, 0),
    kv_source_layer_ids=(2, 4),
    index_source_layer_ids=(2, 4, 5),
    candidate_source_layer_id=4,
    candidate_topk_blocks=96,
    index_n_heads=8,
    index_topk=512,
    engram_layer_ids=(1, 3),
    engram_vocab_size=1000,
    engram_head_dim=64,
    dspark_block_size=3,
    dspark_target_layer_ids=(3, 4, 5),
    dspark_markov_rank=32,
    dspark_n_routed_experts=8,
    dspark_num_experts_per_tok=2,
)

# Starts on one H200 with the stock wheel: heads, groups and indexer as the GPU kernels want them.
H200 = V41Size(
    vocab_size=4096,
    hidden_size=1024,
    moe_intermediate_size=256,
    num_attention_heads=64,
    o_groups=8,
    q_lora_rank=512,
    o_lora_rank=256,
    rms_norm_eps=1e-6,
    n_routed_experts=16,
    num_experts_per_tok=4,
    compress_ratios=(0, 0, 2, 2, 1, 1, 1, 1, 0, 0, 0),
    kv_source_layer_ids=(2, 4),
    index_source_layer_ids=(2, 4, 6),
    candidate_source_layer_id=4,
    candidate_topk_blocks=2048,
    index_n_heads=32,
    index_topk=512,
    engram_layer_ids=(1, 3),
    engram_vocab_size=100_000,
    engram_head_dim=256,
    dspark_block_size=5,
    dspark_target_layer_ids=(5, 6, 7),
    dspark_markov_rank=256,
    dspark_n_routed_experts=8,
    dspark_num_experts_per_tok=3,
)

# Images of 100 to 200 pixels a side become 14 to 32 tokens.
CPU_VISION = VisionSize(
    num_hidden_layers=1,
    hidden_size=64,
    num_attention_heads=2,
    intermediate_size=96,
    max_image_tokens=32,
    min_pixels=10_000,
)

SIZES = {"cpu": CPU, "h200": H200}


def resize(
    size: V41Size, *, engram_vocab_size: int | None = None, engram_layer_ids: tuple[int, ...] | None = None
) -> V41Size:
    """size with other Engram tables: about 24 rows a layer for each unit of engram_vocab_size."""
    if engram_vocab_size is not None:
        size = replace(size, engram_vocab_size=engram_vocab_size)
    if engram_layer_ids is not None:
        size = replace(size, engram_layer_ids=engram_layer_ids)
    return size
