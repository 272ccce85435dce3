"""Engram in V4.1: hash each position's last n-grams to table rows and gate them into the streams.

T tokens, S streams, h hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from engram.hash_layout import HashLayout, make_hash_layout
from engram.model_config import read_engram_config
from engram.token_map import load_token_map


@dataclass(slots=True, kw_only=True)
class EngramTables:
    layout: HashLayout
    class_ids: np.ndarray[Any, np.dtype[np.int32]]
    pad_class: int

    @classmethod
    def load(cls, folder: Path, config: dict[str, Any]) -> EngramTables:
        engram_config = read_engram_config(folder)
        token_map = load_token_map(folder, expected_classes=engram_config.engram_compressed_vocab_size)
        return cls(
            layout=make_hash_layout(engram_config),
            class_ids=token_map.class_ids,
            pad_class=int(token_map.class_ids[config["engram_pad_token_id"]]),
        )

    def row_ids(self, layer: int, token_ids: list[int]) -> list[list[int]]:
        """[T][columns]: XOR of the multiplied class ids of the last 2, 3, .. tokens, modulo its prime."""
        layout, place = self.layout, self.layout.layer_ids.index(layer)
        multipliers = layout.multipliers()[place].tolist()
        starts = layout.column_bounds(layer)
        rows = []
        for position in range(len(token_ids)):
            hashed, row = 0, []
            for back in range(layout.window_tokens):
                known = position - back >= 0
                token_class = int(self.class_ids[token_ids[position - back]]) if known else self.pad_class
                hashed ^= token_class * multipliers[back]
                for head in range(layout.num_heads if back else 0):
                    column = (back - 1) * layout.num_heads + head
                    row.append(hashed % layout.primes[place][column] + starts[column])
            rows.append(row)
        return rows


def add_rows(
    tables: EngramTables,
    config: dict[str, Any],
    weights: dict[str, torch.Tensor],
    layer: int,
    tokens: torch.Tensor,
    streams: torch.Tensor,
) -> torch.Tensor:
    """streams [T, S, h] plus, per stream, a gate in (0, 1) times the value projected from the rows."""
    prefix = f"layers.{layer}.engram."
    ids = torch.tensor(tables.row_ids(layer, tokens.tolist()))
    codes = weights[prefix + "embed.weight"].view(torch.uint8)[ids].view(torch.float8_e4m3fn).float()
    scales = torch.pow(2.0, weights[prefix + "embed.scale"].view(torch.uint8)[ids].float() - 127)
    rows = (codes * scales.repeat_interleave(32, -1)).to(torch.bfloat16).to(streams.dtype)
    projected = F.linear(rows.flatten(1), weights[prefix + "wkv.weight"]).float()
    count, hidden = streams.shape[1:]
    keys, value = projected[:, : count * hidden].unflatten(1, (count, hidden)), projected[:, count * hidden :]
    weight = weights[prefix + "q_weight"].float() * weights[prefix + "k_weight"].float()
    wide, eps = streams.float(), config["rms_norm_eps"]
    lengths = ((wide.square().mean(-1) + eps) * (keys.square().mean(-1) + eps)).sqrt()
    dot = (wide * weight * keys).sum(-1) / lengths * hidden**-0.5
    gate = torch.sigmoid(dot.sign() * dot.abs().clamp(min=1e-6).sqrt())
    return (wide + gate.unsqueeze(-1) * value.unsqueeze(1)).to(streams.dtype)
