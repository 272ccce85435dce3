"""The Engram part of a checkpoint's config.json."""

import json
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from engram.errors import CheckpointError

Positive = Annotated[int, Field(ge=1)]
# One look-back more than any released model uses; the C++ hasher keeps windows of this size on its stack.
MAX_NGRAM_SIZE = 8
# A hash column's size must leave room for 63-bit hashes; released models use 16 M.
MAX_COLUMN_ROWS = 1 << 40


class EngramConfig(BaseModel):
    """Keys of the model's text_config; other keys of config.json belong to other parts of the model."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    engram_layer_ids: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1)
    engram_num_embeddings: tuple[Positive, ...]
    engram_max_ngram_size: Annotated[int, Field(ge=2, le=MAX_NGRAM_SIZE)]
    engram_vocab_size: Annotated[int, Field(ge=2, le=MAX_COLUMN_ROWS)]
    engram_n_heads: Annotated[int, Field(ge=1, le=64)]
    engram_head_dim: Annotated[int, Field(ge=32, multiple_of=32)]
    engram_pad_token_id: Annotated[int, Field(ge=0)]
    engram_compressed_vocab_size: Positive
    image_token_id: int | None = None

    @model_validator(mode="after")
    def _one_table_per_layer(self) -> "EngramConfig":
        if len(self.engram_num_embeddings) != len(self.engram_layer_ids):
            raise ValueError("engram_num_embeddings must have one entry per engram_layer_ids")
        if len(set(self.engram_layer_ids)) != len(self.engram_layer_ids):
            raise ValueError("engram_layer_ids must be distinct")
        return self


def read_engram_config(checkpoint_dir: Path) -> EngramConfig:
    """Reads config.json; raises CheckpointError with the key that is missing or wrong."""
    path = checkpoint_dir / "config.json"
    hint = "point --checkpoint at the folder of a DeepSeek-V4.1 checkpoint with its config.json"
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(
            f"config.json must be readable, got {error.strerror} ({path}).", hint=hint
        ) from error
    except ValueError as error:
        raise CheckpointError(f"config.json must be JSON, got {error} ({path}).", hint=hint) from error
    if not isinstance(document, dict):
        raise CheckpointError(
            f"config.json must be an object, got {type(document).__name__} ({path}).", hint=hint
        )
    nested = document.get("text_config")
    keys = {**document, **nested} if isinstance(nested, dict) else document
    return parse_engram_config(keys, where=str(path))


def parse_engram_config(keys: dict[str, object], *, where: str) -> EngramConfig:
    """`keys` is the flat text_config with the top level's image_token_id."""
    try:
        # JSON mode: arrays arrive as lists, and strict Python mode would refuse them as tuples.
        return EngramConfig.model_validate_json(json.dumps(keys))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"]) or "config.json"
        raise CheckpointError(
            f"{name} must be right for Engram, got: {first['msg']} ({where}).",
            hint="use the config.json of the checkpoint's own revision, unchanged",
        ) from error
