"""Attention of each query over its own list of KV rows, with a learned sink in the softmax.

T queries, H heads, K listed rows, D = 512; keys are values.
"""

from __future__ import annotations

import torch

_QUERIES_PER_STEP = 64  # bounds the gathered keys to 64 * K * D floats


def attend_rows(
    q_THD: torch.Tensor,
    kv_ND: torch.Tensor,
    rows_TK: torch.Tensor,
    sink_H: torch.Tensor,
    softmax_scale: float,
) -> torch.Tensor:
    """[T, H, D] in q's type. rows_TK indexes kv_ND; a negative entry is no row. fp32 throughout.

    The sink adds exp(sink) to the softmax's denominator and nothing to its numerator, so a query without rows
    gives zeros.
    """
    out = torch.empty_like(q_THD)
    for start in range(0, q_THD.shape[0], _QUERIES_PER_STEP):
        part = slice(start, start + _QUERIES_PER_STEP)
        rows = rows_TK[part]
        listed = rows >= 0
        keys = kv_ND[rows.clamp_min(0)].float()
        scores = torch.einsum("thd,tkd->thk", q_THD[part].float(), keys) * softmax_scale
        scores = scores.masked_fill(~listed.unsqueeze(1), -torch.inf)
        sink = sink_H.float().view(1, -1, 1)
        top = torch.maximum(scores.amax(-1, keepdim=True), sink)
        weights = (scores - top).exp()
        total = weights.sum(-1, keepdim=True) + (sink - top).exp()
        out[part] = torch.einsum("thk,tkd->thd", weights / total, keys).to(out.dtype)
    return out
