"""V4.1's whole forward pass: streams, hyper-connections, attention, experts, Engram, logits.

T tokens, h hidden, S = hc_mult residual streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from sgl_ext.reference.checkpoint import read_text_config, read_weights
from sgl_ext.reference.v41_attention import SharedKV, attend
from sgl_ext.reference.v41_engram import EngramTables, add_rows


@dataclass(slots=True, kw_only=True)
class ReferenceModel:
    config: dict[str, Any]
    weights: dict[str, torch.Tensor]
    engram: EngramTables

    @classmethod
    def load(cls, folder: Path, dtype: torch.dtype = torch.bfloat16) -> ReferenceModel:
        """dtype is that of weights and activations; bf16 as the engine, fp32 to see rounding's share."""
        config = read_text_config(folder)
        return cls(
            config=config, weights=read_weights(folder, dtype), engram=EngramTables.load(folder, config)
        )

    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """fp32 [T, vocab] of one sequence computed at once."""
        with torch.inference_mode():
            return self._logits(token_ids)

    def _logits(self, token_ids: list[int]) -> torch.Tensor:
        config, weights = self.config, self.weights
        tokens = torch.tensor(token_ids)
        streams = weights["embed.weight"][tokens].unsqueeze(1).repeat(1, config["hc_mult"], 1)
        pre: torch.Tensor | None = None
        shared = SharedKV()
        for layer in range(config["num_hidden_layers"]):
            prefix = f"layers.{layer}."
            if layer in config["engram_layer_ids"]:
                streams = add_rows(self.engram, config, weights, layer, tokens, streams)
            x = self._collapse(streams, pre, prefix + "attn_norm.weight")
            pre, post, mix = self._coefficients(streams, prefix + "hc_attn_")
            streams = _expand(attend(config, weights, layer, x, shared), streams, post, mix)
            x = self._collapse(streams, pre, prefix + "ffn_norm.weight")
            pre, post, mix = self._coefficients(streams, prefix + "hc_ffn_")
            streams = _expand(self._experts(prefix + "ffn.", x), streams, post, mix)
        return F.linear(self._collapse(streams, pre, "norm.weight"), weights["head.weight"]).float()

    def _collapse(self, streams: torch.Tensor, pre: torch.Tensor | None, norm_name: str) -> torch.Tensor:
        """The next sublayer's input, weighted by the coefficients of the sublayer before it."""
        x = streams[:, 0] if pre is None else (streams.float() * pre.unsqueeze(-1)).sum(1).to(streams.dtype)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return (wide * self.weights[norm_name].float()).to(x.dtype)

    def _coefficients(
        self, streams: torch.Tensor, prefix: str
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """pre [T, S], post [T, S], mix [T, S, S] of one sublayer, from the streams before it."""
        config, count = self.config, self.config["hc_mult"]
        flat = streams.flatten(1).float()
        flat_norm = torch.rsqrt(flat.square().mean(1, keepdim=True) + config["rms_norm_eps"])
        raw = F.linear(flat, self.weights[prefix + "fn"]) * flat_norm
        scale, base = self.weights[prefix + "scale"], self.weights[prefix + "base"]
        factors = torch.cat([scale[0].expand(count), scale[1].expand(count), scale[2].expand(count * count)])
        raw = raw * factors + base
        eps = config["hc_eps"]
        pre, post = torch.sigmoid(raw[:, :count]) + eps, 2 * torch.sigmoid(raw[:, count : 2 * count])
        mix = torch.exp(raw[:, 2 * count :].view(-1, count, count))
        mix = mix / mix.sum(2, keepdim=True) + eps
        for step in range(2 * config["hc_sinkhorn_iters"] - 1):
            mix = mix / (mix.sum(1 if step % 2 == 0 else 2, keepdim=True) + eps)
        return pre, post, mix

    def _experts(self, prefix: str, x: torch.Tensor) -> torch.Tensor:
        config = self.config
        scores = F.softplus(F.linear(x.float(), self.weights[prefix + "gate.weight"].float())).sqrt()
        chosen = (scores + self.weights[prefix + "gate.bias"]).topk(config["num_experts_per_tok"]).indices
        share = scores.gather(1, chosen)
        share = share / share.sum(1, keepdim=True) * config["routed_scaling_factor"]
        out = torch.zeros_like(x, dtype=torch.float32)
        for expert in range(config["n_routed_experts"]):
            token, place = (chosen == expert).nonzero(as_tuple=True)
            result = self._feed_forward(f"{prefix}experts.{expert}.", x[token])
            out[token] += share[token, place].unsqueeze(1) * result.float()
        return self._feed_forward(prefix + "shared_experts.", x) + out.to(x.dtype)

    def _feed_forward(self, prefix: str, x: torch.Tensor) -> torch.Tensor:
        limit = self.config["swiglu_limit"]
        gate = F.linear(x, self.weights[prefix + "w1.weight"]).clamp(max=limit).float()
        up = F.linear(x, self.weights[prefix + "w3.weight"]).clamp(-limit, limit).float()
        return F.linear((F.silu(gate) * up).to(x.dtype), self.weights[prefix + "w2.weight"])


def _expand(y: torch.Tensor, streams: torch.Tensor, post: torch.Tensor, mix: torch.Tensor) -> torch.Tensor:
    """Stream i becomes post[i] * y plus the mix of the old streams, mix[j, i] of stream j."""
    mixed = torch.einsum("tji,tjh->tih", mix, streams.float())
    return (post.unsqueeze(-1) * y.float().unsqueeze(1) + mixed).to(streams.dtype)
