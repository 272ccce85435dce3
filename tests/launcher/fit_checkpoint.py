"""A small V4.1-shaped checkpoint for tests: real names, types, shapes and headers; the weights are holes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sgl_ext.tiny_model.v41_sizes import CPU
from sgl_ext.tiny_model.v41_tensors import TensorSpec, list_engram_tables, list_tensors

ITEM_BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1}
ENGRAM_ROWS = (25874, 30058)


def make_config() -> dict[str, Any]:
    """config.json as the published one is built, with the sizes of the CPU model."""
    text = asdict(CPU) | {
        "num_hidden_layers": CPU.num_layers,
        "max_position_embeddings": 1 << 20,
        "sliding_window": 128,
        "n_shared_experts": 1,
        "engram_num_embeddings": list(ENGRAM_ROWS),
        "num_nextn_predict_layers": CPU.num_stages,
    }
    return {"model_type": "deepseek_v41", "text_config": text}


def num_bytes(spec: TensorSpec) -> int:
    size = ITEM_BYTES[spec.dtype]
    for length in spec.shape:
        size *= length
    return size


def plan_shards() -> dict[str, list[TensorSpec]]:
    dense = list(list_tensors(CPU))
    parts = [
        [spec for spec in dense if not spec.name.startswith("mtp.")],
        [spec for spec in dense if spec.name.startswith("mtp.")],
        *(
            list(list_engram_tables(layer, rows, CPU))
            for layer, rows in zip(CPU.engram_layer_ids, ENGRAM_ROWS, strict=True)
        ),
    ]
    return {f"model-{index:05}-of-00004.safetensors": part for index, part in enumerate(parts, 1)}


def header_of(specs: list[TensorSpec]) -> dict[str, Any]:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for spec in specs:
        begin, end = end, end + num_bytes(spec)
        header[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [begin, end]}
    return header


def write_shard(path: Path, header: dict[str, Any], *, data_bytes: int) -> None:
    """Header and a hole of `data_bytes`."""
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + data_bytes)


def write_checkpoint(directory: Path) -> dict[str, list[TensorSpec]]:
    directory.mkdir(parents=True, exist_ok=True)
    shards = plan_shards()
    for name, specs in shards.items():
        write_shard(directory / name, header_of(specs), data_bytes=sum(map(num_bytes, specs)))
    weight_map = {spec.name: name for name, specs in shards.items() for spec in specs}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (directory / "config.json").write_text(json.dumps(make_config()))
    return shards
