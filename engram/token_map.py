"""Token id -> class id: tokens that differ only in case, accents or spacing share one n-gram entry."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, normalizers

from engram.errors import CheckpointError

# Stands for a lone space while Strip() runs; private use, so that no token can contain it.
_LONE_SPACE = "\ue000"
_REPLACEMENT_CHARACTER = "\ufffd"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMap:
    """class_ids int32 [vocabulary]; classes are numbered in order of first appearance."""

    class_ids: NDArray[np.int32]
    num_classes: int


def load_token_map(checkpoint_dir: Path, *, expected_classes: int) -> TokenMap:
    """The map of the checkpoint's tokenizer.json; refuses one with another number of classes.

    The number feeds every multiplier: a wrong one gives wrong rows for every token, with no other symptom.
    """
    path = checkpoint_dir / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(
            f"tokenizer.json must be in the checkpoint, got no such file ({path}).",
            hint="download the tokenizer files of the same revision into the checkpoint folder",
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the tokenizers library raises bare Exception
        raise CheckpointError(
            f"tokenizer.json must be a tokenizer, got: {error} ({path}).",
            hint="download the tokenizer files of the same revision again",
        ) from error
    token_map = build_token_map(tokenizer)
    if token_map.num_classes != expected_classes:
        raise CheckpointError(
            f"token classes must be {expected_classes} (engram_compressed_vocab_size), "
            f"got {token_map.num_classes} ({path}).",
            hint="tokenizer.json and config.json must come from the same revision; download both again",
        )
    return token_map


def build_token_map(tokenizer: Tokenizer) -> TokenMap:
    """Classes of all ids below the vocabulary size, special tokens included."""
    normalizer = _folding_normalizer()
    classes: dict[str | None, int] = {}
    vocab_size = tokenizer.get_vocab_size(with_added_tokens=True)
    class_ids = np.empty(vocab_size, dtype=np.int32)
    for token_id in range(vocab_size):
        key = _class_key(tokenizer, normalizer, token_id)
        class_ids[token_id] = classes.setdefault(key, len(classes))
    return TokenMap(class_ids=class_ids, num_classes=len(classes))


def _class_key(tokenizer: Tokenizer, normalizer: normalizers.Normalizer, token_id: int) -> str | None:
    text: str = tokenizer.decode([token_id], skip_special_tokens=False)
    if _REPLACEMENT_CHARACTER in text:
        # A piece of a UTF-8 sequence has no text of its own; its raw form is its class.
        raw: str | None = tokenizer.id_to_token(token_id)
        return raw
    folded: str = normalizer.normalize_str(text)
    return folded or text


def _folding_normalizer() -> normalizers.Normalizer:
    """NFKC, then accents and case off, runs of blanks to one space, ends stripped unless a space is all."""
    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), _LONE_SPACE),
            normalizers.Strip(),
            normalizers.Replace(_LONE_SPACE, " "),
        ]
    )
