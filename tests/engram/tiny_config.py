"""Engram configurations: the released model's, and one small enough for tests."""

from engram.hash_layout import HashLayout, make_hash_layout
from engram.model_config import EngramConfig

RELEASED = EngramConfig(
    engram_layer_ids=(1, 14),
    engram_num_embeddings=(384_006_168, 384_016_682),
    engram_max_ngram_size=4,
    engram_vocab_size=16_000_000,
    engram_n_heads=8,
    engram_head_dim=256,
    engram_pad_token_id=2,
    engram_compressed_vocab_size=99_092,
    image_token_id=129_264,
)


def tiny_config(*, num_classes: int, image_token_id: int | None = None) -> EngramConfig:
    """Layers 1 and 2 with 24 columns of 101 to 367 rows; rows of 32 weight bytes and one scale byte."""
    return EngramConfig(
        engram_layer_ids=(1, 2),
        engram_num_embeddings=(3828, 7078),
        engram_max_ngram_size=4,
        engram_vocab_size=101,
        engram_n_heads=8,
        engram_head_dim=32,
        engram_pad_token_id=2,
        engram_compressed_vocab_size=num_classes,
        image_token_id=image_token_id,
    )


def tiny_layout(num_classes: int) -> HashLayout:
    return make_hash_layout(tiny_config(num_classes=num_classes))
