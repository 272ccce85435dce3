"""Seeded weights and rows in the shapes of a rank's linear layers, and plain PyTorch over them.

N output features, K input features, T tokens. Weights are e4m3 [N, K] with a power of two for each 32 x 32
block, as DeepSeek-V4.1 stores them; kernels round the inputs to FP8, groups of 32 with a power of two each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

BLOCK = 32
_SCALE_SPREAD = 3  # powers of two on either side, so that a scale of another block is far off
DECODE_TOKENS, BATCH_TOKENS, PREFILL_TOKENS = 6, 48, 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearShape:
    """One kind of linear layer on a rank."""

    name: str
    outputs: int
    inputs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWeight:
    """weight: e4m3 [N, K]. scale: fp32 [N / 32, K / 32], powers of two."""

    weight: torch.Tensor
    scale: torch.Tensor

    def dequantised(self) -> torch.Tensor:
        """fp32 [N, K]."""
        grown = self.scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        outputs, inputs = self.weight.shape
        return self.weight.float() * grown[:outputs, :inputs]


def rank_shapes(config: Any, tp_size: int) -> tuple[LinearShape, ...]:
    """The FP8 linear layers of DeepSeek-V4.1 on one rank, those of one shape once. config: its text config,
    padded to whole head groups of a rank.
    """
    hidden, queries = config.hidden_size, config.q_lora_rank
    heads = config.num_attention_heads // tp_size
    groups = config.o_groups // tp_size
    shared = config.n_shared_experts * config.moe_intermediate_size // tp_size
    shapes = [
        LinearShape(name="wqkv_a", outputs=queries + config.head_dim, inputs=hidden),
        LinearShape(name="wq_b", outputs=heads * config.head_dim, inputs=queries),
        LinearShape(name="wo_b", outputs=hidden, inputs=groups * config.o_lora_rank),
        LinearShape(name="shared gate and up", outputs=2 * shared, inputs=hidden),
        LinearShape(name="shared down", outputs=hidden, inputs=shared),
    ]
    return tuple({(shape.outputs, shape.inputs): shape for shape in reversed(shapes)}.values())[::-1]


def draw_weight(shape: LinearShape, device: torch.device, *, seed: int = 20251130) -> BlockWeight:
    """Every e4m3 value that is finite may come; scales keep outputs near one whatever the width is."""
    draw = torch.Generator().manual_seed(seed)
    codes = torch.randn((shape.outputs, shape.inputs), generator=draw).to(torch.float8_e4m3fn)
    rows, columns = -(-shape.outputs // BLOCK), -(-shape.inputs // BLOCK)
    spread = torch.randint(-_SCALE_SPREAD, _SCALE_SPREAD + 1, (rows, columns), generator=draw)
    scale = torch.exp2((spread - shape.inputs.bit_length() // 2).float())
    return BlockWeight(weight=codes.to(device), scale=scale.to(device))


def zero_weight(shape: LinearShape, device: torch.device) -> BlockWeight:
    """A shard of padding: zero weights, scales 1.0."""
    drawn = draw_weight(shape, device)
    return BlockWeight(
        weight=torch.zeros_like(drawn.weight.view(torch.uint8)).view(torch.float8_e4m3fn),
        scale=torch.ones_like(drawn.scale),
    )


def draw_rows(shape: LinearShape, tokens: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Ordinary tokens, and every fourth with groups that differ a thousandfold,
    so that a scale of another group shows.
    """
    draw = torch.Generator().manual_seed(tokens)
    rows = torch.randn((tokens, shape.inputs), generator=draw)
    groups = torch.exp2(torch.randint(-5, 6, (tokens, -(-shape.inputs // BLOCK)), generator=draw).float())
    grown = groups.repeat_interleave(BLOCK, 1)[:, : shape.inputs]
    rows[3::4] *= grown[3::4]
    return rows.to(device, dtype)


def reference(weight: BlockWeight, rows: torch.Tensor) -> torch.Tensor:
    """fp32 products of the stored values; the result in the rows' type."""
    return (rows.float() @ weight.dequantised().T).to(rows.dtype)
