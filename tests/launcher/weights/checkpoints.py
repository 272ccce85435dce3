"""Checkpoints for pushes: safetensors files of random bytes; Engram rows and draft in shards of their own."""

from __future__ import annotations

import json
import random
from pathlib import Path

INDEX = "model.safetensors.index.json"
SHARDS = {
    "model-00001-of-00004.safetensors": {"embed.weight": 300_000, "layers.0.attn.wq_a.weight": 900_001},
    "model-00002-of-00004.safetensors": {"layers.1.ffn.experts.0.w1.weight": 2_500_000},
    "model-00003-of-00004.safetensors": {"mtp.0.norm.weight": 700_000},
    "model-00004-of-00004.safetensors": {
        "layers.1.engram.embed.weight": 1_500_000,
        "layers.1.engram.embed.scale": 46_875,
    },
}


def write_shard(path: Path, tensors: dict[str, int], *, seed: int = 0) -> None:
    """Every tensor is bytes (U8) of that length."""
    header, end = {}, 0
    for name, length in tensors.items():
        header[name] = {"dtype": "U8", "shape": [length], "data_offsets": [end, end + length]}
        end += length
    text = json.dumps(header).encode()
    source = random.Random(f"{path.name} {seed}")
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for begin in range(0, end, 1 << 24):
            file.write(source.randbytes(min(1 << 24, end - begin)))


def write_checkpoint(directory: Path, *, seed: int = 0, scale: int = 1) -> Path:
    """About 6 MB x `scale`."""
    directory.mkdir(parents=True)
    weight_map: dict[str, str] = {}
    for shard, tensors in SHARDS.items():
        write_shard(directory / shard, {name: size * scale for name, size in tensors.items()}, seed=seed)
        weight_map |= dict.fromkeys(tensors, shard)
    total = sum(sum(tensors.values()) for tensors in SHARDS.values()) * scale
    (directory / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    (directory / "config.json").write_text('{"model_type": "deepseek_v41"}')
    (directory / "inference").mkdir()
    (directory / "inference" / "README.md").write_text("notes\n")
    return directory
