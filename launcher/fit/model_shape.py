"""What a model's memory is computed from: its config values and the stored bytes of each part."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from launcher.errors import PreflightRefused, UsageError
from launcher.fit.model_config import ModelConfig, parse_model_config, read_model_config
from launcher.fit.read_checkpoint import read_checkpoint
from launcher.fit.weight_classes import Part, classify

# One scale byte for 32 x 32 dense weights, for 32 expert weights along K, for 32 values of an Engram row.
BLOCK = 32
_BF16, _F32 = 2, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """`part_bytes` as stored in the files. `origin` says in words where the sizes come from."""

    origin: str
    config: ModelConfig
    part_bytes: Mapping[Part, int]

    @property
    def stored_bytes(self) -> int:
        return sum(self.part_bytes.values())


def shipped_shape(name: str) -> ModelShape:
    """A shape that needs no checkpoint: config values of the published model, sizes by arithmetic."""
    document = json.loads(files("launcher.fit").joinpath("shipped_shapes.json").read_text())
    if name not in document:
        raise UsageError(
            f"--model must be one of {', '.join(document)}, got {name!r}",
            hint="or name a directory: sparkctl fit --checkpoint DIR",
        )
    entry = document[name]
    config = ModelConfig.model_validate(entry["config"])
    return ModelShape(
        origin=f"shipped shape {name}",
        config=config,
        part_bytes=derive_part_bytes(config, entry["vision_bytes"]),
    )


def checkpoint_shape(directory: Path) -> ModelShape:
    """From config.json, the index and the shards' headers. Raises ConfigError or PreflightRefused."""
    if not directory.is_dir():
        raise PreflightRefused(
            f"The checkpoint must be a directory, got none ({directory}).",
            hint="name the directory that holds config.json: sparkctl fit --checkpoint DIR",
        )
    config = read_model_config(directory)
    sizes = ((tensor.name, tensor.num_bytes) for tensor in read_checkpoint(directory))
    return ModelShape(origin=f"checkpoint {directory}", config=config, part_bytes=_sum_parts(sizes))


def reported_shape(config: object, tensor_bytes: Mapping[str, int], *, where: str) -> ModelShape:
    """From what a node read of its own checkpoint. Raises ConfigError."""
    return ModelShape(
        origin=f"checkpoint {where}",
        config=parse_model_config(config, where=where),
        part_bytes=_sum_parts(tensor_bytes.items()),
    )


def _sum_parts(sizes: Iterable[tuple[str, int]]) -> dict[Part, int]:
    sums: Counter[Part] = Counter()
    for name, num_bytes in sizes:
        sums[classify(name)] += num_bytes
    return {part: sums[part] for part in Part}


def derive_part_bytes(config: ModelConfig, vision_bytes: int = 0) -> dict[Part, int]:
    """Stored bytes of each part by arithmetic; equal to the files' own sums (a test compares them)."""
    sums: Counter[Part] = Counter(dict.fromkeys(Part, 0))
    sums[Part.VISION] = vision_bytes
    sums[Part.VOCABULARY] = 2 * config.vocab_size * config.hidden_size * _BF16
    sums[Part.REPLICATED] = config.hidden_size * _BF16  # norm
    for _ in range(config.num_hidden_layers):
        _add_block(sums, config, config.n_routed_experts, is_draft=False)
    for _ in range(config.num_nextn_predict_layers):
        _add_block(sums, config, config.dspark_n_routed_experts, is_draft=True)
    sums[Part.REPLICATED] += sum(_sparse_attention_bytes(config)) + _engram_dense_bytes(config)
    sums[Part.DRAFT_REPLICATED] += _draft_end_bytes(config)
    rows = sum(config.engram_num_embeddings)
    sums[Part.ENGRAM_ROWS] = rows * (config.engram_head_dim + config.engram_head_dim // BLOCK)
    return dict(sums)


def expert_bytes(config: ModelConfig, width: int) -> int:
    """One MXFP4 expert of this width: two values a byte, one scale byte for 32 values along K."""
    hidden = config.hidden_size
    return 3 * width * hidden // 2 + 2 * width * (hidden // BLOCK) + hidden * (width // BLOCK)


def _fp8(rows: int, columns: int) -> int:
    return rows * columns + (rows // BLOCK) * (columns // BLOCK)


def _add_block(sums: Counter[Part], config: ModelConfig, num_experts: int, *, is_draft: bool) -> None:
    hidden, heads_width = config.hidden_size, config.num_attention_heads * config.head_dim
    group_width = heads_width // config.o_groups
    o_rows = config.o_groups * config.o_lora_rank
    routed = num_experts * expert_bytes(config, config.moe_intermediate_size)
    wo_a = o_rows * group_width
    attention = (
        _fp8(heads_width, config.q_lora_rank) + _fp8(o_rows, group_width) - wo_a + _fp8(hidden, o_rows)
    )
    width = config.n_shared_experts * config.moe_intermediate_size
    shared = 2 * _fp8(width, hidden) + _fp8(hidden, width)
    parts = (
        (Part.DRAFT_ROUTED, Part.DRAFT_WO_A, Part.DRAFT_ATTENTION, Part.DRAFT_SHARED, Part.DRAFT_REPLICATED)
        if is_draft
        else (Part.ROUTED, Part.WO_A, Part.ATTENTION, Part.SHARED, Part.REPLICATED)
    )
    values = (routed, wo_a, attention, shared, _replicated_block_bytes(config, num_experts))
    for part, value in zip(parts, values, strict=True):
        sums[part] += value


def _replicated_block_bytes(config: ModelConfig, num_experts: int) -> int:
    """Norms, wq_a, wkv, attn_sink, gate with two biases, and the mHC mixing of attention and experts."""
    hidden = config.hidden_size
    norms = (2 * hidden + config.q_lora_rank + config.head_dim) * _BF16
    projections = _fp8(config.q_lora_rank, hidden) + _fp8(config.head_dim, hidden)
    sink = config.num_attention_heads * _F32
    gate = num_experts * hidden * _BF16 + 2 * num_experts * _F32
    num_mixes = (2 + config.hc_mult) * config.hc_mult
    mixing = 2 * (num_mixes * config.hc_mult * hidden + num_mixes + 3) * _F32
    return norms + projections + sink + gate + mixing


def _sparse_attention_bytes(config: ModelConfig) -> Iterator[int]:
    """Compressors of the KV sources, indexers of the index sources; every rank holds them whole."""
    for layer in config.kv_source_layer_ids:
        num_projections = 2 if config.compress_ratios[layer] > 1 else 1
        yield (config.head_dim + num_projections * config.head_dim * config.hidden_size) * _BF16
    for layer in config.index_source_layer_ids:
        yield _fp8(config.index_n_heads * config.index_head_dim, config.q_lora_rank)
        yield config.index_n_heads * config.hidden_size * _BF16
        if layer in config.kv_source_layer_ids:
            yield (config.index_head_dim * config.head_dim + config.index_head_dim) * _BF16


def _engram_dense_bytes(config: ModelConfig) -> int:
    """wkv (FP8) and the two gate weights of each Engram layer."""
    columns = (config.engram_max_ngram_size - 1) * config.engram_n_heads
    projection = _fp8(config.hidden_size * (config.hc_mult + 1), columns * config.engram_head_dim)
    return len(config.engram_layer_ids) * (projection + 2 * config.hc_mult * config.hidden_size * _BF16)


def _draft_end_bytes(config: ModelConfig) -> int:
    """main_proj and its norm, the last norm, the Markov head (SGLang holds it whole), the confidence head."""
    stages, hidden, rank = config.num_nextn_predict_layers, config.hidden_size, config.dspark_markov_rank
    if not stages:
        return 0
    markov = 2 * config.vocab_size * rank * _BF16
    return _fp8(hidden, hidden * stages) + 2 * hidden * _BF16 + markov + (hidden + rank) * _BF16
