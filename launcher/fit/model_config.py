"""The values of a V4.1 config.json that memory depends on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from launcher.errors import ConfigError
from launcher.fit.read_checkpoint import MODEL_TYPE, read_json_object

# Keeps products of garbage values from becoming absurdly large numbers.
Count = Annotated[int, Field(strict=True, ge=1, le=1 << 40)]
Index = Annotated[int, Field(strict=True, ge=0, le=1 << 20)]


class ModelConfig(BaseModel):
    """Names are those of text_config. Other keys of the file are not read."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    vocab_size: Count
    hidden_size: Count
    num_hidden_layers: Annotated[int, Field(strict=True, ge=1, le=4096)]
    max_position_embeddings: Count
    num_attention_heads: Count
    head_dim: Count
    qk_rope_head_dim: Count
    q_lora_rank: Count
    o_lora_rank: Count
    o_groups: Count
    sliding_window: Count
    n_routed_experts: Count
    n_shared_experts: Index
    moe_intermediate_size: Count
    compress_ratios: tuple[Index, ...]
    kv_source_layer_ids: tuple[Index, ...]
    index_source_layer_ids: tuple[Index, ...]
    index_n_heads: Count
    index_head_dim: Count
    hc_mult: Count
    engram_layer_ids: tuple[Index, ...]
    engram_num_embeddings: tuple[Count, ...]
    engram_max_ngram_size: Count
    engram_n_heads: Count
    engram_head_dim: Count
    num_nextn_predict_layers: Index
    dspark_markov_rank: Count
    dspark_n_routed_experts: Count

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.compress_ratios) < self.num_hidden_layers:
            raise ValueError(f"compress_ratios must have one entry a layer ({self.num_hidden_layers})")
        for name in ("kv_source_layer_ids", "index_source_layer_ids", "engram_layer_ids"):
            if any(layer >= self.num_hidden_layers for layer in getattr(self, name)):
                raise ValueError(f"{name} must name layers below {self.num_hidden_layers}")
        if len(self.engram_num_embeddings) != len(self.engram_layer_ids):
            raise ValueError("engram_num_embeddings must have one entry for each of engram_layer_ids")
        if self.num_attention_heads % self.o_groups:
            raise ValueError("num_attention_heads must be a multiple of o_groups")
        return self

    def kv_sources(self, ratio: int) -> int:
        """Layers that own compressed KV of this ratio."""
        return sum(self.compress_ratios[layer] == ratio for layer in self.kv_source_layer_ids)


def read_model_config(directory: Path) -> ModelConfig:
    """Raises ConfigError unless config.json is a DeepSeek-V4.1 one with usable values."""
    path = directory / "config.json"
    document = read_json_object(path)
    if document.get("model_type") != MODEL_TYPE:
        raise ConfigError(
            f"model_type must be {MODEL_TYPE}, got {document.get('model_type')!r:.60} ({path}).",
            hint="fit knows the tensors of DeepSeek-V4.1 only",
        )
    return parse_model_config(document.get("text_config"), where=str(path))


def parse_model_config(text: object, *, where: str) -> ModelConfig:
    """`text` is the text_config of `where`. Raises ConfigError."""
    try:
        return ModelConfig.model_validate(text)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(["text_config", *map(str, first["loc"])])
        seen = "" if first["type"] in ("missing", "value_error") else f", got {first['input']!r:.60}"
        raise ConfigError(f"{key}: {first['msg']}{seen} ({where}).") from error
