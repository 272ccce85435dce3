"""A checkpoint folder with seeded Engram planes in safetensors files, as the released one lays them out."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engram.model_config import EngramConfig
from engram.primes import draw_column_primes
from engram.token_map import build_token_map
from tests.engram.tiny_config import tiny_config
from tests.engram.tiny_tokenizer import make_tokenizer

REVISION = "a" * 40
OTHER_REVISION = "b" * 40


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyCheckpoint:
    directory: Path
    config: EngramConfig
    weights: dict[int, NDArray[np.uint8]]  # layer -> [rows, weight bytes]
    scales: dict[int, NDArray[np.uint8]]  # layer -> [rows, scale bytes]

    def rows(self, layer_id: int) -> NDArray[np.uint8]:
        """[rows, weight bytes + scale bytes]."""
        return np.concatenate([self.weights[layer_id], self.scales[layer_id]], axis=1)


def scaled_config(
    *, vocab_size: int, head_dim: int = 32, layer_ids: tuple[int, ...] = (1, 2), num_classes: int = 300
) -> EngramConfig:
    """24 columns of a little over vocab_size rows in each layer."""
    draft = tiny_config(num_classes=num_classes).model_copy(
        update={"engram_layer_ids": layer_ids, "engram_vocab_size": vocab_size, "engram_head_dim": head_dim}
    )
    primes = _layout_sums(draft)
    return draft.model_copy(update={"engram_num_embeddings": primes})


def build_checkpoint(
    directory: Path,
    config: EngramConfig | None = None,
    *,
    seed: int = 0,
    with_index: bool = True,
    extra_bytes: int = 13,
) -> TinyCheckpoint:
    """One shard a layer. extra_bytes of another tensor come first, so that no plane starts aligned."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    if config is None:
        config = tiny_config(num_classes=build_token_map(tokenizer).num_classes)
    text_config = config.model_dump(mode="json", exclude={"image_token_id"})
    document = {"architectures": ["DeepseekV41ForCausalLM"], "text_config": text_config}
    if config.image_token_id is not None:
        document["image_token_id"] = config.image_token_id
    (directory / "config.json").write_text(json.dumps(document))
    rng = np.random.default_rng(seed)
    weights, scales, weight_map = {}, {}, {}
    shapes = zip(config.engram_layer_ids, config.engram_num_embeddings, strict=True)
    for shard_idx, (layer_id, num_rows) in enumerate(shapes):
        weights[layer_id] = _random_bytes(rng, num_rows, config.engram_head_dim)
        scales[layer_id] = _random_bytes(rng, num_rows, config.engram_head_dim // 32)
        prefix = f"layers.{layer_id}.engram"
        tensors = {
            f"{prefix}.q_weight": ("U8", np.zeros(extra_bytes, dtype=np.uint8)),
            f"{prefix}.embed.scale": ("F8_E8M0", scales[layer_id]),
            f"{prefix}.embed.weight": ("F8_E4M3", weights[layer_id]),
        }
        shard = f"model-{shard_idx + 1:05d}-of-{len(config.engram_layer_ids):05d}.safetensors"
        write_safetensors(directory / shard, tensors)
        weight_map |= dict.fromkeys(tensors, shard)
    if with_index:
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return TinyCheckpoint(directory=directory, config=config, weights=weights, scales=scales)


def write_safetensors(path: Path, tensors: dict[str, tuple[str, NDArray[np.uint8]]]) -> None:
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, data) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": list(data.shape),
            "data_offsets": [offset, offset + data.nbytes],
        }
        offset += data.nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, data in tensors.values():
            file.write(data.tobytes())


def _random_bytes(rng: np.random.Generator, num_rows: int, row_bytes: int) -> NDArray[np.uint8]:
    return rng.integers(0, 256, (num_rows, row_bytes), dtype=np.uint8)


def _layout_sums(config: EngramConfig) -> tuple[int, ...]:
    primes = draw_column_primes(
        num_layers=len(config.engram_layer_ids),
        num_orders=config.engram_max_ngram_size - 1,
        num_heads=config.engram_n_heads,
        vocab_size=config.engram_vocab_size,
    )
    return tuple(sum(layer) for layer in primes)
