"""A tiny V4.1 whose random draft often proposes what the target says, so that several tokens are accepted.

Large embeddings make the target's next token depend on the last one for the most part. The draft's Markov
head gets the same dependence: the target's own embeddings and head. What the layers add the draft does not
know: where that decides, its tokens are refused.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from sgl_ext.tiny_model.v41 import INDEX_NAME, build_v41
from sgl_ext.tiny_model.v41_sizes import CPU

EMBED_GAIN = 8.0  # how far the last token outweighs what the layers add
MARKOV_GAIN = 4.0  # how far the Markov head outweighs the draft stages


def build_agreeing(out: Path, *, seed: int) -> None:
    size = replace(
        CPU,
        num_experts_per_tok=CPU.n_routed_experts,
        dspark_num_experts_per_tok=CPU.dspark_n_routed_experts,
        dspark_markov_rank=CPU.hidden_size,
    )
    build_v41(out, size, seed=seed)
    from safetensors.torch import load_file, save_file

    shards = json.loads((out / INDEX_NAME).read_text())["weight_map"]
    markov = f"mtp.{size.num_stages - 1}.markov_head."
    target = load_file(out / shards["embed.weight"])
    draft = load_file(out / shards[markov + "embed.weight"])
    embed, head = target["embed.weight"], target["head.weight"]
    draft[markov + "embed.weight"] = embed.clone()
    draft[markov + "head.weight"] = MARKOV_GAIN * head * target["norm.weight"]
    target["embed.weight"] = EMBED_GAIN * embed
    save_file(target, out / shards["embed.weight"], metadata={"format": "pt"})
    save_file(draft, out / shards[markov + "embed.weight"], metadata={"format": "pt"})
