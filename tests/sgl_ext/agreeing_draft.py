"""A tiny V4.1 whose random draft often proposes what the target says, so that several tokens are accepted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sgl_ext.tiny_model.agreeing_draft import build_agreeing_v41
from sgl_ext.tiny_model.v41_sizes import CPU


def build_agreeing(out: Path, *, seed: int) -> None:
    """With these gains the layers decide often enough that every count of a block's tokens is accepted."""
    size = replace(
        CPU,
        num_experts_per_tok=CPU.n_routed_experts,
        dspark_num_experts_per_tok=CPU.dspark_n_routed_experts,
        dspark_markov_rank=CPU.hidden_size,
    )
    build_agreeing_v41(out, size, seed=seed, embed_gain=8.0, markov_gain=4.0)
