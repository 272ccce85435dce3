"""One V4.1 attention layer over a whole sequence: window, compressed positions picked by an indexer, sink.

T tokens, H heads, C compressed positions, D = 512 of which the last 64 are rotated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from sgl_ext.reference.rounding import round_index_vector, round_latent, round_slot

WINDOW = 128
ROTATED = 64


@dataclass(slots=True, kw_only=True)
class SharedKV:
    """What source layers leave for the layers after them, per compress ratio."""

    latents: dict[int, torch.Tensor] = field(default_factory=dict)  # ratio -> [C, D]
    index_keys: dict[int, torch.Tensor] = field(default_factory=dict)  # ratio -> [C, 128]
    picked: dict[int, torch.Tensor] = field(default_factory=dict)  # ratio -> bool [T, C]
    candidates: torch.Tensor | None = None  # bool [T, C], from the candidate source


def attend(
    config: dict[str, Any], weights: dict[str, torch.Tensor], layer: int, x: torch.Tensor, shared: SharedKV
) -> torch.Tensor:
    """x [T, h], the layer's normalised input -> [T, h]; updates shared where the layer is a source."""
    ratio = config["compress_ratios"][layer]
    attention = _Layer(config=config, weights=weights, prefix=f"layers.{layer}.attn.", ratio=ratio)
    num_tokens, heads = x.shape[0], config["num_attention_heads"]
    angles = attention.angles(torch.arange(num_tokens))
    q_lora = attention.norm("q_norm", attention.linear("wq_a", x))
    q = rotate(attention.linear("wq_b", q_lora).view(num_tokens, heads, -1), angles)
    window_kv = attention.norm_fp32("kv_norm", attention.linear("wkv", x))
    window_kv = round_slot(rotate(window_kv, angles))
    past = torch.arange(num_tokens)
    gap = past.unsqueeze(1) - past
    kv, visible = window_kv, (gap >= 0) & (gap < WINDOW)
    if ratio:
        _update_sources(attention, layer, x, q_lora, angles, shared)
        kv = torch.cat([window_kv, shared.latents[ratio]])
        visible = torch.cat([visible, shared.picked[ratio]], dim=1)
    sink = attention.tensor("attn_sink")
    out = _softmax_with_sink(q, kv, visible, sink).to(x.dtype)
    out = rotate(out, (angles[0], -angles[1]))
    groups = config["o_groups"]
    per_group = attention.tensor("wo_a.weight").view(groups, config["o_lora_rank"], -1)
    low_rank = torch.einsum("tgd,grd->tgr", out.reshape(num_tokens, groups, -1), per_group)
    return attention.linear("wo_b", low_rank.flatten(1))


def _softmax_with_sink(
    q: torch.Tensor, kv: torch.Tensor, visible: torch.Tensor, sink: torch.Tensor
) -> torch.Tensor:
    scores = torch.einsum("thd,sd->ths", q.float(), kv.float()) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~visible.unsqueeze(1), -torch.inf)
    column = sink.view(1, -1, 1).expand(q.shape[0], -1, 1)
    weights = torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1]
    return torch.einsum("ths,sd->thd", weights, kv.float())


def _update_sources(
    attention: _Layer,
    layer: int,
    x: torch.Tensor,
    q_lora: torch.Tensor,
    angles: tuple[torch.Tensor, torch.Tensor],
    shared: SharedKV,
) -> None:
    config, ratio = attention.config, attention.ratio
    if layer in config["kv_source_layer_ids"]:
        latent = _compress(attention, x)
        turned = attention.angles(torch.arange(latent.shape[0]) * ratio)
        key = attention.norm("indexer.k_norm", F.linear(latent, attention.tensor("indexer.wk.weight")))
        shared.index_keys[ratio] = round_index_vector(rotate(key, turned))
        shared.latents[ratio] = round_slot(round_latent(rotate(latent, turned)))
    if layer in config["index_source_layer_ids"]:
        scores = _index_scores(attention, x, q_lora, angles, shared.index_keys[ratio])
        shared.picked[ratio] = _pick(config, layer, scores, shared)


def _compress(attention: _Layer, x: torch.Tensor) -> torch.Tensor:
    """[T // ratio, D]: the projection itself at ratio 1, a gated mean of each pair at ratio 2."""
    if attention.ratio == 1:
        return attention.norm("compressor.norm", F.linear(x, attention.tensor("compressor.wkv.weight")))
    kv, gate = (
        F.linear(x.float(), attention.tensor(f"compressor.{name}.weight").float())
        for name in ("wkv", "wgate")
    )
    whole = x.shape[0] // 2 * 2
    kv, gate = kv[:whole].unflatten(0, (-1, 2)), gate[:whole].unflatten(0, (-1, 2))
    pooled = (kv * gate.softmax(1)).sum(1)
    return attention.norm("compressor.norm", pooled.to(x.dtype))


def _index_scores(
    attention: _Layer,
    x: torch.Tensor,
    q_lora: torch.Tensor,
    angles: tuple[torch.Tensor, torch.Tensor],
    keys: torch.Tensor,
) -> torch.Tensor:
    """[T, C], -inf where the compressed position is not complete at the token."""
    heads, width = attention.config["index_n_heads"], attention.config["index_head_dim"]
    q = attention.linear("indexer.wq_b", q_lora).view(x.shape[0], heads, width)
    q = round_index_vector(rotate(q, angles))
    share = F.linear(x, attention.tensor("indexer.weights_proj.weight")) * (width * heads) ** -0.5
    dots = torch.einsum("thd,cd->thc", q, keys).relu()
    scores = (dots * share.unsqueeze(-1)).sum(1).float()
    complete = (torch.arange(x.shape[0]) + 1) // attention.ratio
    return scores.masked_fill(torch.arange(keys.shape[0]) >= complete.unsqueeze(1), -torch.inf)


def _pick(config: dict[str, Any], layer: int, scores: torch.Tensor, shared: SharedKV) -> torch.Tensor:
    """bool [T, C]: the index_topk best, after a candidate source among its candidate blocks only."""
    source, size = config["candidate_source_layer_id"], config["candidate_block_size"]
    if layer == source:
        shared.candidates = _candidate_blocks(scores, size, config["candidate_topk_blocks"])
    elif 0 <= source < layer:
        assert shared.candidates is not None
        scores = scores.masked_fill(~shared.candidates, -torch.inf)
    return _best(scores, config["index_topk"])


def _candidate_blocks(scores: torch.Tensor, size: int, num_blocks: int) -> torch.Tensor:
    """Blocks by their best position; the newest visible block always counts as best."""
    padded = F.pad(scores, (0, -scores.shape[1] % size), value=-torch.inf)
    best = padded.unflatten(1, (-1, size)).amax(-1)
    newest = (scores > -torch.inf).sum(1) - 1
    rows = torch.nonzero(newest >= 0).squeeze(1)
    best[rows, newest[rows] // size] = torch.inf
    return _best(best, num_blocks).repeat_interleave(size, 1)[:, : scores.shape[1]]


def _best(scores: torch.Tensor, count: int) -> torch.Tensor:
    top = scores.topk(min(count, scores.shape[1]), dim=1).indices
    chosen = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, top, True)
    return chosen & (scores > -torch.inf)


def rotate(x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Turns the pairs (2i, 2i + 1) of the last 64 features; angles are cosines and sines [T, 32]."""
    shape = (x.shape[0], *([1] * (x.ndim - 2)), -1)
    cos, sin = angles[0].view(shape), angles[1].view(shape)
    even, odd = x[..., -ROTATED::2].float(), x[..., -ROTATED + 1 :: 2].float()
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)
    return torch.cat([x[..., :-ROTATED], turned.to(x.dtype)], dim=-1)


@dataclass(slots=True, kw_only=True)
class _Layer:
    """One layer's weights under short names, with its rotary frequencies."""

    config: dict[str, Any]
    weights: dict[str, torch.Tensor]
    prefix: str
    ratio: int

    def tensor(self, name: str) -> torch.Tensor:
        return self.weights[self.prefix + name]

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.tensor(name + ".weight"))

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return self.norm_fp32(name, x).to(x.dtype)

    def norm_fp32(self, name: str, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return wide * self.tensor(name + ".weight").float()

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines; layers with compressed KV use another base, stretched by YaRN."""
        base = self.config["compress_rope_theta"] if self.ratio else self.config["rope_theta"]
        frequency = 1.0 / base ** (torch.arange(0, ROTATED, 2, dtype=torch.float32) / ROTATED)
        if self.ratio:
            frequency = _stretch(frequency, base, self.config["rope_scaling"])
        angle = positions.float().unsqueeze(1) * frequency
        return angle.cos(), angle.sin()


def _stretch(frequency: torch.Tensor, base: float, scaling: dict[str, Any]) -> torch.Tensor:
    """YaRN: slow frequencies divided by the factor, fast ones kept, a linear ramp between."""

    def pair_with(turns: float) -> float:
        length = scaling["original_max_position_embeddings"]
        return ROTATED * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair_with(scaling["beta_fast"])), 0)
    high = min(math.ceil(pair_with(scaling["beta_slow"])), ROTATED - 1)
    ramp = ((torch.arange(ROTATED // 2).float() - low) / max(high - low, 0.001)).clamp(0, 1)
    return frequency / scaling["factor"] * ramp + frequency * (1 - ramp)
