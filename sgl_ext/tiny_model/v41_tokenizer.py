"""A byte-level BPE tokenizer with DeepSeek's special tokens, built without training, so always the same.

SGLang's V4.1 chat encoder looks the special tokens up by name, and Engram needs len(tokenizer) == vocab_size.
"""

from __future__ import annotations

import string
from itertools import product

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

BAR = "\uff5c"  # full-width vertical bar
_GAP = "\u2581"  # lower one eighth block, DeepSeek's space inside token names

BEGIN = f"<{BAR}begin{_GAP}of{_GAP}sentence{BAR}>"
END = f"<{BAR}end{_GAP}of{_GAP}sentence{BAR}>"
PAD = f"<{BAR}{_GAP}pad{_GAP}{BAR}>"
IMAGE = f"<{BAR}image{BAR}>"
_ROLES = [f"<{BAR}{name}{BAR}>" for name in ("User", "Assistant", "System", "Developer", "latest_reminder")]
_MARKS = [f"<{BAR}{slash}{name}{BAR}>" for name in ("ref", "box", "point", "polygon") for slash in ("", "/")]
_TOOLS = [
    f"<{BAR}tool{_GAP}{name}{BAR}>"
    for name in (f"calls{_GAP}begin", f"calls{_GAP}end", f"call{_GAP}begin", f"call{_GAP}end", "sep")
]
_TASKS = [f"<{BAR}{name}{BAR}>" for name in ("action", "query", "authority", "domain", "title", "read_url")]
SPECIAL_TOKENS = [*_ROLES, "<think>", "</think>", f"{BAR}DSML{BAR}", IMAGE, *_MARKS, *_TOOLS, *_TASKS]

_SPACE = "\u0120"  # byte-level BPE's spelling of a space
# By how often they occur in English, so that small vocabularies merge the useful pairs first.
_LETTERS = "etaoinshrdlcumwfgypbvkjxqz"


def build_tokenizer(vocab_size: int) -> Tokenizer:
    """Exactly vocab_size ids: BEGIN 0, END 1, PAD 2, bytes, merges, special tokens, spares."""
    leading = [BEGIN, END, PAD]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    room = vocab_size - len(leading) - len(alphabet) - len(SPECIAL_TOKENS)
    if room < 0:
        smallest = vocab_size - room
        raise ValueError(
            f"vocab_size must be at least {smallest} to hold the special tokens, got {vocab_size}."
        )
    merges = list_merges()[:room]
    pieces = [*leading, *alphabet, *(left + right for left, right in merges)]
    vocab = {piece: token_id for token_id, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    spares = [f"<|reserved_{idx}|>" for idx in range(room - len(merges))]
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in [*leading, *SPECIAL_TOKENS, *spares]]
    )
    if tokenizer.get_vocab_size(with_added_tokens=True) != vocab_size:
        raise AssertionError(
            f"built {tokenizer.get_vocab_size(with_added_tokens=True)} tokens, not {vocab_size}"
        )
    return tokenizer


def list_merges() -> list[tuple[str, str]]:
    """Merge rules in order of rank: space + letter, letter pairs, space + letter pairs, capitals, digits."""
    lower = [(left, right) for left, right in product(_LETTERS, repeat=2)]
    # Useful pairs first: rank by the sum of the two letters' places.
    lower.sort(key=lambda pair: _LETTERS.index(pair[0]) + _LETTERS.index(pair[1]))
    return [
        *((_SPACE, letter) for letter in _LETTERS),
        *lower,
        *((_SPACE + left, right) for left, right in lower),
        *((_SPACE, letter) for letter in string.ascii_uppercase + string.digits),
        *((left, right) for left, right in product(string.digits, repeat=2)),
        *((left, right) for left, right in product(string.ascii_uppercase, _LETTERS)),
        *((left + right, third) for left, right in lower[:120] for third in _LETTERS[:16]),
    ]
