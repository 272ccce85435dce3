"""One rank: SGLang's sharded lookup with its all-reduce, and ours with its all-gather, over gloo.

    compare_rows RANK TP MODEL MEET RESULTS

Runs in a fork of engine_origin.py, which has imported SGLang. Writes RESULTS/rank-RANK when all rows are the
same.
"""

from __future__ import annotations

import itertools
import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
from safetensors import safe_open

from engram.checkpoint import open_checkpoint
from tests.sgl_ext.engram_rows.conftest import LAYERS


def load_table(model_dir: Path, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    prefix = f"layers.{layer}.engram.embed."
    index = json.loads((model_dir / "model.safetensors.index.json").read_text())["weight_map"]
    with safe_open(model_dir / index[prefix + "weight"], "pt") as shard:
        return shard.get_tensor(prefix + "weight"), shard.get_tensor(prefix + "scale")


def draw_ids(bounds: tuple[int, ...], tokens: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    columns = [
        torch.randint(low, high, (tokens,), generator=generator) for low, high in itertools.pairwise(bounds)
    ]
    return torch.stack(columns, dim=1)


def main() -> None:
    rank, tp = int(sys.argv[1]), int(sys.argv[2])
    model_dir, rendezvous, results = (Path(word) for word in sys.argv[3:])
    import torch.distributed as dist
    from sglang.srt.layers.engram import EngramEmbedding
    from sglang.srt.runtime_context import get_parallel

    from sgl_ext.engram.embedding import StoredEngramEmbedding

    class Gloo:
        def all_gather_into_tensor(self, output: torch.Tensor, part: torch.Tensor) -> None:
            dist.all_gather_into_tensor(output, part)

    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=tp,
        timeout=timedelta(seconds=120),  # a rank that failed must not make the others wait for ever
    )
    layout = open_checkpoint(model_dir).layout
    with get_parallel().override(tp_size=tp, tp_rank=rank, attn_dp_size=1, attn_cp_size=1, tp_group=Gloo()):
        stored = {}
        for layer in LAYERS:
            bounds = layout.column_bounds(layer)
            stored[layer] = StoredEngramEmbedding(bounds[-1], 64, layer, column_bounds=bounds)
        for layer in LAYERS:
            bounds = layout.column_bounds(layer)
            weight, scale = load_table(model_dir, layer)
            stock = EngramEmbedding(bounds[-1], 64, layer, column_bounds=bounds)
            stock._load_rows(stock.weight, weight)
            stock._load_rows(stock.scale, scale)
            for tokens in (1, 6, 257):
                ids = draw_ids(bounds, tokens, seed=tokens)
                expected = stock._owned_rows(ids)
                if tp > 1:
                    dist.all_reduce(expected)
                seen = stored[layer](ids)
                assert seen.shape == expected.shape == (tokens, 24, 64)
                assert torch.equal(seen.view(torch.int16), expected.view(torch.int16))
    (results / f"rank-{rank}").write_text("same")
    dist.destroy_process_group()
