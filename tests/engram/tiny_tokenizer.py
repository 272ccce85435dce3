"""A byte-level BPE tokenizer with the quirks of the real one: pieces of UTF-8, accents, special tokens."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

BAR = "\uff5c"
SPECIAL_TOKENS = (
    f"<{BAR}begin\u2581of\u2581sentence{BAR}>",
    f"<{BAR}end\u2581of\u2581sentence{BAR}>",
    f"<{BAR}\u2581pad\u2581{BAR}>",
    f"<{BAR}User{BAR}>",
    f"<{BAR}Assistant{BAR}>",
    f"<{BAR}System{BAR}>",
    "<think>",
    "</think>",
    f"{BAR}DSML{BAR}",
    f"<{BAR}image{BAR}>",
)
IMAGE_TOKEN_ID = SPECIAL_TOKENS.index(f"<{BAR}image{BAR}>")

# Case, accents, compatibility forms, runs of blanks, tabs and newlines must fold into one class; the Chinese,
# Greek and emoji text leaves tokens that hold only a part of a character.
_TEXTS = [
    "The the THE Caf\u00e9 cafe CAFE\u0301 na\u00efve \ufb01ne fine \uff21\uff22 AB",
    "two  blanks\tand\ttabs\r\n\r\n",
    "def hash_rows(tokens):\n    return [row for row in tokens]\n\n\n   \t  class Row:\n        pass\n",
    "\u4f60\u597d\u4e16\u754c \u7f16\u7a0b \u03b1\u03b2\u03b3 \u0391\u0392",
    "\U0001f600\U0001f680 \u00bd \u2167 stra\u00dfe",
    "I\u0307stanbul ISTANBUL istanbul \u1e9b\u0323 \u00a0 no\u00a0break \u3000 wide",
]


def make_tokenizer(vocab_size: int = 520) -> Tokenizer:
    """At most vocab_size tokens; ids of SPECIAL_TOKENS are their positions."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(text, normalized=False, special=True) for text in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXTS * 4, trainer)
    return tokenizer
