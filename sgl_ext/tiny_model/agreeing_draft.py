"""A small V4.1 whose weights are changed so that its draft proposes what the target says.

Large embeddings make the target's next token depend on the last one. The draft's Markov head gets the same
dependence: the target's own embeddings and head, so it drafts from the target's own logits. What the layers
add the draft does not know; the gains say how seldom that decides.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from sgl_ext.tiny_model.v41 import INDEX_NAME, build_v41
from sgl_ext.tiny_model.v41_sizes import V41Size
from sgl_ext.write_atomically import write_atomically

_DONE_NAME = "agreeing_draft.json"


def build_agreeing_v41(
    folder: Path,
    size: V41Size,
    *,
    seed: int,
    embed_gain: float,
    markov_gain: float,
    report: Callable[[str], None] = lambda line: None,
) -> None:
    """As build_v41, and then changed. embed_gain: how far the last token outweighs what the layers add;
    markov_gain: how far the Markov head outweighs the draft's stages.

    A Markov head narrower than the model knows an embedding's first columns only, so the others become 0.
    Does nothing where it is done already; a build that was cut off begins again.
    """
    gains = {"embed_gain": embed_gain, "markov_gain": markov_gain}
    done = folder / _DONE_NAME
    if done.is_file() and json.loads(done.read_text()) == gains:
        return
    done.unlink(missing_ok=True)
    build_v41(folder, size, seed=seed, report=report)  # a changed shard has another size and is drawn again
    from safetensors.torch import load_file, save_file

    shards = json.loads((folder / INDEX_NAME).read_text())["weight_map"]
    markov = f"mtp.{size.num_stages - 1}.markov_head."
    target = load_file(folder / shards["embed.weight"])
    draft = load_file(folder / shards[markov + "embed.weight"])
    rank = size.dspark_markov_rank
    embed, head = target["embed.weight"], target["head.weight"] * target["norm.weight"]
    draft[markov + "embed.weight"] = embed[:, :rank].clone()
    draft[markov + "head.weight"] = markov_gain * head[:, :rank]
    target["embed.weight"] = embed_gain * embed
    target["embed.weight"][:, rank:] = 0
    save_file(target, folder / shards["embed.weight"], metadata={"format": "pt"})
    save_file(draft, folder / shards[markov + "embed.weight"], metadata={"format": "pt"})
    write_atomically(done, (json.dumps(gains) + "\n").encode())
